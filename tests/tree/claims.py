#!/usr/bin/env python3
"""Whether each promise of tests/claims.txt was shown by the test that it names; tests/run asks it after the first pass.

usage: claims.py CLAIMS CTEST_OUTPUT LAST_TEST_LOG    prints a line for each promise that was not, and at the end how
many there are; exits with 1 if any was not shown, or if a line of CLAIMS is none

CTEST_OUTPUT is what ctest printed, LAST_TEST_LOG its Testing/Temporary/LastTest.log, which has what each test said. A
test that was skipped shows nothing: it fails here, unless the line names a tool that the test says it lacks.
"""
import re
import sys
from pathlib import Path

LINE = re.compile(r"(?P<promise>[^|]+) \| (?P<test>[\w.]+)(?: \(skip: needs (?P<tools>[^()|]+)\))?")
OUTCOME = re.compile(r"^ *\d+/\d+ Test +#\d+: (\S+) \.*(?: +|\*\*\*)(\w+)", re.M)
SAID = re.compile(r"^\d+/\d+ Test: (\S+)\n(?:(?!\d+/\d+ Test: ).*\n)*?Output:\n-+\n((?:.*\n)*?)<end of output>$", re.M)


def reasons_of(said):
    """Why a test says that it was skipped."""
    return re.findall(r"^skip: (.*)", said, re.M)


def judge(claim, outcome, said):
    """None: it was shown, or it may be skipped here; else what is wrong."""
    promise, test = claim["promise"], claim["test"]
    if outcome == "Passed":
        return None
    if outcome != "Skipped":
        return f'claim not shown: "{promise}": {test} did not pass'
    tools = claim["tools"].split(" or ") if claim["tools"] else []
    reasons = reasons_of(said)
    if any(tool in reason for tool in tools for reason in reasons):
        print(f'skip: claim not shown on this machine: "{promise}": {test}: {"; ".join(reasons)}')
        return None
    needs = f"it may be for lack of {' or '.join(tools)} alone" if tools else "its line allows no skip"
    return f'claim not shown: "{promise}": {test} was skipped ({"; ".join(reasons) or "without a reason"}), and {needs}'


def judge_all(claims, ran, log):
    """Prints what is wrong, and returns the exit status."""
    outcomes, said = dict(OUTCOME.findall(ran)), dict(SAID.findall(log))
    count, wrong = 0, []
    for number, line in enumerate(claims.splitlines(), 1):
        if not line.strip() or line.startswith("#"):
            continue
        count += 1
        claim = LINE.fullmatch(line)
        if claim is None:
            wrong.append(f"tests/claims.txt:{number}: not \"promise | test\" or \"promise | test (skip: needs TOOL)\"")
            continue
        wrong.append(judge(claim, outcomes.get(claim["test"]), said.get(claim["test"], "")))
    wrong = [line for line in wrong if line]
    for line in wrong:
        print(f"FAILED: {line}")
    print(f"claims: {count}, {len(wrong)} of them not shown")
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(judge_all(*(Path(name).read_text(encoding="utf-8", errors="replace") for name in sys.argv[1:4])))
