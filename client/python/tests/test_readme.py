"""The README's PyTorch program as it stands there, installed by pip into an empty environment, under `cairn local`."""

import os
import re
import shutil
import subprocess
import sys
import tempfile
import unittest
from pathlib import Path

from cluster import BIN
from runner import main, torchrun_lacks

SOURCE = Path(os.environ.get("CAIRN_SOURCE", Path(__file__).resolve().parents[3]))


def run(*command, **options) -> subprocess.CompletedProcess:
    return subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, timeout=120, **options)


def has_torch() -> bool:
    return run(sys.executable, "-c", "import torch").returncode == 0


class TheReadme(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        folder = tempfile.TemporaryDirectory()
        cls.addClassCleanup(folder.cleanup)
        cls.folder = Path(folder.name)
        of_the_build = ("PYTHONPATH", "CAIRN_LIBRARY")  # `cairn local` says where the library is
        cls.environment = {name: value for name, value in os.environ.items() if name not in of_the_build}

    def install(self) -> Path:
        """A Python of an empty environment that has the package, by its own pip."""
        venv, copy = self.folder / "venv", self.folder / "client" / "python"
        made = run(sys.executable, "-m", "venv", "--system-site-packages", venv)
        if made.returncode != 0:
            self.skipTest(f"no virtual environment can be made (Debian: python3-venv): {made.stdout[-200:]}")
        shutil.copytree(SOURCE / "client" / "python", copy)
        pip = [venv / "bin" / "pip", "install", "--quiet", "--disable-pip-version-check", "--retries", "0"]
        got = run(*pip, copy, env=self.environment)
        if got.returncode != 0:  # without a network: with the setuptools that are there
            got = run(*pip, "--no-build-isolation", copy, env=self.environment)
        if re.search("(No module named|Cannot import) .*setuptools", got.stdout):
            self.skipTest("neither a network nor setuptools (Debian: python3-setuptools)")
        self.assertEqual(got.returncode, 0, got.stdout)
        return venv / "bin" / "python"

    def test_it_runs_as_it_stands_in_an_empty_environment(self):
        python = self.install()
        where = run(python, "-c", "import cairn, sys; print(cairn.__file__, 'torch' in sys.modules)", cwd=self.folder,
                    env=self.environment)
        self.assertRegex(where.stdout, r"venv/.*site-packages/cairn/__init__.py False")
        if not has_torch():
            self.skipTest("torch is not installed for this Python (Debian: python3-torch)")
        program = re.search(r"^## PyTorch in seven lines\n.*?^```python\n(.*?)^```$",
                            (SOURCE / "README.md").read_text(), re.M | re.S).group(1)
        (self.folder / "train.py").write_text(program)
        local = [BIN / "cairn", "local", "--shards", "2", "--"]
        alone = run(*local, python, "train.py", cwd=self.folder, env=self.environment)
        self.assertEqual(alone.returncode, 0, alone.stdout)
        self.assertRegex(alone.stdout, r"step 50 loss .*\n(.*\n)*step 200 loss 0\.\d+ norm")
        if torchrun_lacks():
            print(f"skip: {torchrun_lacks()}")
            return
        torchrun = [python, "-m", "torch.distributed.run", "--nproc_per_node", "2", "-r", "1", "-t", "1",
                    "--rdzv_backend", "c10d", "--rdzv_endpoint", "localhost:0"]
        two = run(*local, *torchrun, "train.py", cwd=self.folder, env=self.environment)
        self.assertEqual(two.returncode, 0, two.stdout)
        self.assertEqual(len(re.findall(r"^\[.*\]:step 200 ", two.stdout, re.M)), 2, two.stdout)


if __name__ == "__main__":
    main()
