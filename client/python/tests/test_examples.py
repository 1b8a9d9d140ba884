"""Every Python example, as a user runs it, over the daemons of `cairn local`."""

import json
import os
import re
import runpy
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
import traceback
import unittest
from pathlib import Path
from typing import Optional

from cluster import BIN
from runner import main, skip, torchrun_lacks

try:
    import torch
except ImportError:
    skip("torch is not installed for this Python (Debian: python3-torch)")

SOURCE = Path(__file__).resolve().parents[3]
EXAMPLES = SOURCE / "client" / "examples"
SIZES = ["--width", "32", "--layers", "2", "--heads", "4", "--context", "32"]
TEXT = ["--text", str(SOURCE / "LICENSE")]  # which nobody edits: losses depend on it
DEADLINE_S = 40
NUMBER = r"(-?\d+\.?\d*(?:e[-+]\d+)?)"


class Run:
    """An example's process, and what it has said so far. It is forked from this one, which has imported torch: that
    would be most of the work of twenty processes."""

    def __init__(self, case: "Case", example: str, *options: str, **environment: str):
        handle, self.said_to = tempfile.mkstemp(dir=case.folder, suffix=".out")
        sys.stdout.flush()
        self.pid, self.status = os.fork(), None
        if self.pid == 0:
            become(handle, case, EXAMPLES / example, options, environment)
        os.close(handle)
        case.addCleanup(self.kill)

    def kill(self) -> None:
        if self.ended() is None:
            os.kill(self.pid, signal.SIGKILL)
            os.waitpid(self.pid, 0)
            self.status = -signal.SIGKILL

    def ended(self) -> Optional[int]:
        """Its status, if it has ended."""
        if self.status is None:
            pid, status = os.waitpid(self.pid, os.WNOHANG)
            self.status = os.waitstatus_to_exitcode(status) if pid != 0 else None
        return self.status

    def said(self) -> str:
        return Path(self.said_to).read_text(errors="replace")

    def lines(self, pattern: str) -> list:
        return re.findall(pattern, self.said())

    def until(self, pattern: str, since: int = 0) -> None:
        """Waits for something to be said, behind the first `since` characters."""
        deadline = time.monotonic() + DEADLINE_S
        while not re.search(pattern, self.said()[since:]):
            if self.ended() is not None or time.monotonic() > deadline:
                raise AssertionError(f"{pattern!r} was not said, status {self.status}: {self.said()[-3000:]}")
            time.sleep(0.01)

    def done(self, status: int = 0) -> "Run":
        deadline = time.monotonic() + DEADLINE_S
        while self.ended() is None and time.monotonic() < deadline:
            time.sleep(0.01)
        if self.status != status:
            raise AssertionError(f"status {self.status} within {DEADLINE_S} s: {self.said()[-3000:]}")
        return self

    def losses(self) -> list:
        return [float(loss) for loss in self.lines(rf"step \d+ loss {NUMBER}")]

    def evaluation(self) -> float:
        return float(self.lines(rf"done step \d+ evaluation loss {NUMBER}")[-1])


def become(output: int, case: "Case", script: Path, options: tuple, environment: dict) -> None:
    """In the child: what `python3 SCRIPT OPTIONS` would do."""
    status = 1
    try:
        os.dup2(output, 1), os.dup2(output, 2)
        os.chdir(case.folder)
        os.environ.update({"CAIRN_ENDPOINT": case.endpoint, **environment})
        sys.argv, sys.path[0] = [str(script), *options], str(script.parent)
        runpy.run_path(str(script), run_name="__main__")
        status = 0
    except SystemExit as end:
        status = end.code if isinstance(end.code, int) else 1
    except BaseException:  # noqa: BLE001 - this process ends here
        traceback.print_exc()
    finally:
        sys.stdout.flush()
        os._exit(status)


def free_port() -> str:
    with socket.socket() as one:
        one.bind(("127.0.0.1", 0))
        return str(one.getsockname()[1])


class Case(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        folder = tempfile.TemporaryDirectory(prefix="cairn-examples-")
        cls.addClassCleanup(folder.cleanup)
        cls.folder = Path(folder.name).resolve()
        where = cls.folder / "endpoint"
        local = subprocess.Popen([BIN / "cairn", "local", "--shards", "2", "--endpoint-file", where],
                                 cwd=cls.folder, stderr=subprocess.PIPE)
        cls.addClassCleanup(cls.stop, local)
        deadline = time.monotonic() + DEADLINE_S
        while not where.exists():
            if local.poll() is not None or time.monotonic() > deadline:
                raise RuntimeError(f"cairn local did not start: {local.stderr.read()[-2000:]}")
            time.sleep(0.01)
        cls.endpoint = where.read_text().strip()

    @staticmethod
    def stop(local):
        local.terminate()
        local.communicate(timeout=30)

    def ranks(self, world: int, example: str, *options: str) -> list:
        """One process a rank, with what a launcher sets."""
        port = free_port()
        return [Run(self, example, *options, RANK=str(rank), WORLD_SIZE=str(world),
                    LOCAL_RANK=str(rank), MASTER_ADDR="127.0.0.1", MASTER_PORT=port, USE_LIBUV="0")
                for rank in range(world)]  # Debian 13's torch asks for libuv, and is built without it

    def gpt(self, world: int, job: str, *options: str) -> Run:
        """Rank 0, which speaks for all."""
        runs = self.ranks(world, "gpt.py", "--job", job, "--batch", "8", "--every", "1", *SIZES, *options)
        return [run.done() for run in runs][0]


class Gpt(Case):
    def test_stage_1_and_stage_3_have_the_same_losses_which_fall(self):
        text = [] if shutil.which("bible") else TEXT
        print("note: the text is", "LICENSE: no program `bible`" if text else "the King James Bible")
        by_stage = {stage: self.gpt(2, f"stage{stage}", "--steps", "30", "--stage", stage, *text) for stage in "13"}
        first, third = [run.losses() for run in by_stage.values()]
        self.assertEqual(len(first), 30)
        self.assertEqual(first, third)
        self.assertEqual(by_stage["1"].evaluation(), by_stage["3"].evaluation())
        self.assertLess(by_stage["1"].evaluation(), first[0] - 1)
        print(f"note: losses of stages 1 and 3: {first[0]} to {first[-1]}, evaluation {by_stage['1'].evaluation()}")

    def test_tensor_parallelism_trains_the_same_model(self):
        alone = self.gpt(1, "alone", "--steps", "20", *TEXT)
        team = self.gpt(2, "team", "--steps", "20", "--tp", "2", "--stage", "3", *TEXT)
        worst = max(abs(a - b) for a, b in zip(alone.losses(), team.losses()))
        print(f"note: 20 steps of one worker and of a team of two: losses differ by at most {worst:.4f}, evaluation "
              f"{alone.evaluation()} and {team.evaluation()}")
        self.assertEqual(len(team.losses()), 20)
        self.assertLessEqual(worst, 2e-3)
        self.assertLessEqual(abs(alone.evaluation() - team.evaluation()), 2e-3)

    def test_a_timeline_says_how_much_of_the_push_time_is_within_the_backward(self):
        run = self.gpt(1, "timeline", "--steps", "3", "--stage", "3", "--timeline", "trace.json", *TEXT)
        share = run.lines(r"(\d+) % of the push time is within the backward passes")
        self.assertEqual(len(share), 1, run.said())
        self.assertTrue(0 <= int(share[0]) <= 100)
        events = json.loads((self.folder / "trace.json").read_text())["traceEvents"]
        names = [event["name"] for event in events if event["ph"] == "X"]
        self.assertEqual([names.count(phase) for phase in ("forward", "backward", "step")], [3, 3, 3])
        self.assertEqual(names.count("push blocks.1.qkv"), 3)
        self.assertEqual([names.count(f"use blocks.1, {phase}") for phase in ("forward", "backward")], [3, 3])
        self.assertGreaterEqual(names.count("fetch blocks.1"), 3)
        self.assertEqual(len(run.lines(r"(\d+) % of the fetches of units began while another one was used")), 1)
        self.assertTrue(all(event["dur"] >= 0 and event["ts"] >= 0 for event in events if event["ph"] == "X"))
        print(f"note: {share[0]} % of the push time is within the backward passes, in a model of 10,000 parameters")

    def test_torchrun_starts_it(self):
        if torchrun_lacks():
            self.skipTest(torchrun_lacks())
        # Debian's torch 1.13 has no torchrun in Python 3.11 without redirects.
        launch = ["-m", "torch.distributed.run", "-r", "1", "-t", "1", "--nproc_per_node", "2", "--master_port",
                  free_port(), "--log_dir", self.folder]
        example = [EXAMPLES / "gpt.py", *SIZES, *TEXT, "--steps", "3", "--job", "torchrun"]
        done = subprocess.run([sys.executable, "-W", "ignore", *launch, *example], cwd=self.folder, timeout=DEADLINE_S,
                              env={**os.environ, "CAIRN_ENDPOINT": self.endpoint}, text=True,
                              stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
        self.assertEqual(done.returncode, 0, done.stdout[-3000:])
        self.assertIn("done step 3 evaluation loss", done.stdout)

    def test_without_a_text_it_says_what_to_install(self):
        run = Run(self, "gpt.py", PATH="/nowhere").done(status=2)
        self.assertIn("apt install bible-kjv bible-kjv-text, or give --text FILE", run.said())


class Finetune(Case):
    def test_it_begins_with_a_file_and_leaves_what_is_frozen(self):
        trained = self.gpt(1, "before", "--steps", "12", "--save", "gpt.safetensors", *TEXT)
        began = set()
        for job, how in (("read", []), ("put", ["--put"])):
            runs = self.ranks(2, "finetune.py", "--weights", "gpt.safetensors", "--job", job, "--batch", "8", "--steps",
                              "6", "--lr", "2e-3", *SIZES, *TEXT, *how)
            first = [run.done() for run in runs][0]
            self.assertIn("unchanged: token.weight place.weight\n", first.said())
            self.assertIn("trained: 19 tensors", first.said())
            began.add(first.lines(rf"rank 0 begins with evaluation loss {NUMBER}")[0])
            self.assertLess(first.evaluation(), trained.evaluation())
        self.assertEqual(began, {f"{trained.evaluation():.4f}"}, "both ways begin where the training ended")


class Evaluate(Case):
    def test_it_reads_exact_versions_beside_the_training(self):
        reader = Run(self, "evaluate.py", "--job", "beside", "--every", "10", "--until", "40", *SIZES,
                     *TEXT)
        trained = self.gpt(1, "beside", "--steps", "40", *TEXT)
        seen = [(int(step), float(loss)) for step, loss in reader.done().lines(
            rf"step (\d+) of generation 1 evaluation loss {NUMBER}")]
        print(f"note: evaluated beside the training: {seen}")
        self.assertEqual(seen[-1], (40, trained.evaluation()))
        self.assertGreaterEqual(len(seen), 2)
        self.assertEqual([step for step, _ in seen], sorted({step for step, _ in seen}))
        self.assertGreater(seen[0][1], seen[-1][1])


class Elastic(Case):
    def worker(self, rank: int) -> Run:
        return Run(self, "elastic.py", "--steps", "80", "--width", "32", *TEXT, CAIRN_RANK=str(rank),
                   CAIRN_WORLD="2")

    def stands(self, run: Run) -> None:
        """Until nothing more was said for as long as a busy machine may take for a step."""
        said, since = "", time.monotonic()
        while time.monotonic() - since < 3:
            if run.said() != said:
                said, since = run.said(), time.monotonic()
            time.sleep(0.02)

    def test_a_worker_is_killed_and_a_new_one_joins(self):
        first, second = self.worker(0), self.worker(1)
        second.until(r"step 1\d worker 1 of 2 micro-batches 2")
        os.kill(second.pid, signal.SIGSTOP)
        self.stands(first)  # in a round that wants both
        second.kill()
        first.until(r"worker 0 of 1 micro-batches 4", since=len(first.said()))
        third = self.worker(1)
        first.done(), third.done()
        again, joined = first.lines(r"step (\d+) is computed again"), third.lines(r"attached at step (\d+)")
        print(f"note: computed again by worker 0: steps {', '.join(again)}; the new one attached at step {joined[0]}")
        self.assertTrue(again)
        self.assertTrue(third.lines(r"worker 1 of 2 micro-batches 2"), third.said())
        steps = [int(step) for step in first.lines(r"step (\d+) worker 0")]
        self.assertEqual(steps, list(range(steps[0], 81)), "each step is applied once")
        self.assertEqual(first.evaluation(), third.evaluation())
        self.assertLess(first.evaluation(), 3.3)


if __name__ == "__main__":
    main()
