"""The tests that need torch, by another Python: the one that CAIRN_TEST_TORCH_PYTHON names, say of a venv with the
newest torch. Without it nothing is tried, and CTest says skipped.

    python3 -m venv /tmp/torch && /tmp/torch/bin/pip install torch numpy
    CAIRN_TEST_TORCH_PYTHON=/tmp/torch/bin/python ctest -R python.current_torch
"""

import os
import subprocess
import sys
from pathlib import Path

from runner import skip

NEEDS_TORCH = ("advice", "after_attach", "again", "attach", "beside", "blobs", "buffers", "changed", "checkpoint",
               "cuda", "driven", "gradients", "imports", "lent", "memory", "meta", "optim", "own_steps", "parts",
               "port", "schedulers", "torch", "window", "wrapped")
SKIPPED = 77


def main() -> None:
    python = os.environ.get("CAIRN_TEST_TORCH_PYTHON")
    if not python:
        skip("CAIRN_TEST_TORCH_PYTHON names no Python with a current torch")
    asked = subprocess.run([python, "-c", "import torch; print(torch.__version__)"], capture_output=True, text=True)
    if asked.returncode != 0:
        sys.exit(f"{python} has no torch: {asked.stderr[-500:]}")
    print(f"note: {python}: torch {asked.stdout.strip()}", flush=True)
    failed = []
    for name in [f"test_{one}" for one in NEEDS_TORCH] + ["real_checkpoints", "integrations"]:
        status = subprocess.run([python, Path(__file__).with_name(f"{name}.py")]).returncode
        print(f"note: {name}.py: {'skipped' if status == SKIPPED else status or 'held'}", flush=True)
        if status != 0 and not (status == SKIPPED and name == "integrations"):  # whose packages may be there
            failed.append(name)
    if failed:
        sys.exit(f"failed or skipped with this torch: {', '.join(failed)}")


if __name__ == "__main__":
    main()
