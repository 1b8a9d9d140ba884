"""A worker that is at work on something else: the others wait, and say for whom."""

import threading
import time
import unittest
import warnings

from cluster import Cluster
from runner import main, skip

try:
    import torch
except ImportError:
    skip("torch is not installed for this Python (Debian: python3-torch)")

from torch import nn

import cairn

torch.set_num_threads(1)
warnings.filterwarnings("ignore", message="Failed to initialize NumPy")
TIMEOUT, PAUSE = 0.6, 1.6


class Case(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.cluster = Cluster()
        cls.addClassCleanup(cls.cluster.stop)

    def pair(self):
        made = []
        for rank in range(2):
            session = cairn.connect(self.cluster.endpoint, name=f"trainer {rank}")
            self.addCleanup(session.close)
            torch.manual_seed(1)
            made.append(session.attach(nn.Linear(2, 2), cairn.SGD(lr=0.1), name=self.id().rsplit(".", 1)[1], rank=rank,
                                       workers=2, timeout=20))
        for m in made:
            m.timeout = TIMEOUT
        return made

    def step(self, m):
        m.model(torch.ones(1, 2)).sum().backward()
        return m.step()

    def beside(self, call):
        seen = {}

        def run():
            try:
                seen["result"] = call()
            except Exception as failure:
                seen["result"] = failure

        thread = threading.Thread(target=run)
        thread.start()
        return lambda: (thread.join(20), seen.get("result"))[1]

    def test_the_others_wait_and_say_for_whom(self):
        first, second = self.pair()
        other = self.beside(lambda: self.step(second))
        self.step(first)
        self.assertEqual(other().step, 1)
        with self.assertLogs("cairn", "WARNING") as logs:
            other = self.beside(lambda: self.step(second))
            with first.pause("evaluating", at_most=60):
                time.sleep(PAUSE)  # that long it evaluates
                shown = self.cluster.ctl("job", "show", first.name)["awaited"]
            self.assertEqual(self.step(first).step, 2)
        self.assertEqual(other().step, 2)
        self.assertRegex(shown, "worker trainer 0 of rank 0, which is evaluating, for [56][0-9] s more at most")
        self.assertEqual(len(logs.output), 1)  # a line a minute
        self.assertIn("waits for worker trainer 0 of rank 0, which is evaluating", logs.output[0])

    def test_it_ends_by_itself(self):
        first, second = self.pair()
        with first.pause("dreaming", at_most=0.3):
            failed = self.beside(lambda: self.step(second))()
        self.assertIsInstance(failed, cairn.Timeout)
        self.assertNotIn("dreaming", str(failed))

    def test_a_worker_that_leaves_in_one_holds_nobody_up(self):
        first, second = self.pair()
        with first.pause("evaluating"):
            other = self.beside(lambda: self.step(second))
            first.close()
            self.assertIsInstance(other(), (cairn.EpochChanged, cairn.Timeout))

    def test_what_makes_no_sense_is_refused(self):
        first, _ = self.pair()
        for what, at_most in (("", 1), ("x" * 64, 1), ("a\nb", 1), ("evaluating", 0), ("evaluating", 1e6)):
            with self.assertRaises(cairn.Invalid, msg=repr((what, at_most))):
                with first.pause(what, at_most=at_most):
                    pass


if __name__ == "__main__":
    main()
