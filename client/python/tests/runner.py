"""How a test file ends: 0 all held, 1 something did not, 77 nothing could be tried (CTest then says skipped)."""

import sys
import unittest


def main() -> None:
    result = unittest.main(exit=False, verbosity=1).result
    if not result.wasSuccessful():
        sys.exit(1)
    for _, reason in result.skipped:
        print(f"skip: {reason}")
    sys.exit(77 if result.testsRun == 0 or len(result.skipped) == result.testsRun else 0)


def skip(reason: str) -> None:
    """The whole file cannot be tried here."""
    print(f"skip: {reason}")
    sys.exit(77)
