#!/usr/bin/env python3
"""The rule of tests/claims.txt: a promise whose test was skipped is not shown, unless its line names the tool that the
test says it lacks. Each case is a line, how CTest says that the test ended, what that said, and the verdict.

usage: claims_rule.py
"""
import contextlib
import io
import sys

sys.dont_write_bytecode = True  # the tree stays as it is
import claims

CASES = [
    ("it holds | a.b", "   Passed", "", None),
    ("it holds | a.b (skip: needs nvcc)", "   Passed", "", None),
    ("it holds | a.b", "***Failed", "", "a.b did not pass"),
    ("it holds | a.b", "***Timeout", "", "a.b did not pass"),
    ("it holds | a.b", None, "", "a.b did not pass"),
    ("it holds | a.b", "***Skipped", "skip: no nvcc is here\n", "its line allows no skip"),
    ("it holds | a.b (skip: needs nvcc)", "***Skipped", "skip: no nvcc is here\n", None),
    ("it holds | a.b (skip: needs torch or nvcc)", "***Skipped", "skip: no nvcc is here\n", None),
    ("it holds | a.b (skip: needs nvcc)", "***Skipped", "skip: this user is not root\n", "for lack of nvcc alone"),
    ("it holds | a.b (skip: needs nvcc)", "***Skipped", "nvcc\n", "without a reason"),
    ("it holds | a.b (skip: needs nvcc)", "***Failed", "skip: no nvcc is here\n", "a.b did not pass"),
    ("it holds | a_b (skip: needs nvcc)", "   Passed", "", "a_b did not pass"),
    ("it holds | a.b (needs nvcc)", "   Passed", "", "claims.txt:2: not"),
    ("it holds, by a.b", "   Passed", "", "claims.txt:2: not"),
]

RULE = "-" * 58


def verdict(line, outcome, said):
    """What is printed, and the exit status."""
    ran = f"  7/9 Test  #12: a.b ......{outcome}    0.05 sec\n" if outcome else ""
    others = "1/9 Test: c\nOutput:\n" + RULE + "\nskip: no torch, no nvcc\n<end of output>\n"
    own = f"2/9 Test: a.b\nCommand: x\n\"a.b\" start time: now\nOutput:\n{RULE}\n{said}<end of output>\n"
    with contextlib.redirect_stdout(io.StringIO()) as out:
        status = claims.judge_all(f"# a comment\n{line}\n", f"  1/9 Test   #1: c ....***Skipped   0.01 sec\n{ran}",
                                  others + own + others)
    return status, out.getvalue()


def main():
    failed = 0
    for line, outcome, said, expected in CASES:
        status, text = verdict(line, outcome, said)
        if status != (expected is not None) or (expected is not None and expected not in text):
            failed += 1
            print(f"{line} / {outcome} / {said!r}: exit status {status}, not \"{expected}\":\n{text}")
    print(f"{len(CASES)} cases, {failed} of them wrong")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
