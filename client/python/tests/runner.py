"""How a test file ends: 0 all held, 1 something did not, 77 nothing could be tried (CTest then says skipped)."""

import functools
import subprocess
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


@functools.lru_cache(maxsize=None)
def torchrun_lacks() -> str:
    """Why torchrun of this torch cannot start; empty: it can. Debian 13's asks for libuv and is built without it."""
    store = "import torch.distributed as d; d.TCPStore('127.0.0.1', 0, 1, True)"
    tried = subprocess.run([sys.executable, "-c", store], text=True, capture_output=True)
    if "without libuv" not in tried.stderr:
        return ""
    return f"torchrun of this torch does not start: {tried.stderr.splitlines()[-1]}"
