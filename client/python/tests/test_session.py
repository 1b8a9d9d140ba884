"""The layer without torch, against a real cluster: plain buffers, no numpy."""

import array
import dataclasses
import math
import os
import pickle
import signal
import struct
import subprocess
import sys
import threading
import unittest
from unittest import mock

import cairn
from cairn import _c
from cluster import Cluster
from runner import main

SPEC = cairn.JobSpec(tensors=[cairn.Tensor("w", (2, 3)), cairn.Tensor("b", ()),
                              cairn.Tensor("ice", (2,), kind="frozen")],
                     groups=[cairn.Group(optimizer="sgd", lr=0.5)])

EMPTY = cairn.Box((), ())


def floats(*values: float) -> array.array:
    return array.array("f", values)


def opened(session: cairn.Session, name: str = "job", spec: cairn.JobSpec = SPEC) -> cairn.Job:
    job = session.open_worker(name, spec, timeout=20)
    if spec.rank == 0 and job.put("w", floats(0, 1, 2, 3, 4, 5)):
        job.put("b", floats(7))
        job.put("ice", struct.pack("2f", 8, 9))  # bytes will do
    job.init_done(20)
    return job


def fetched(job: cairn.Job, tensor: str, version: cairn.Version, elems: int, **options) -> list:
    into = array.array("f", bytes(4 * elems))
    job.fetch(version, tensor, into, **options).wait(20)
    return list(into)


class AJob(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.cluster = Cluster(shards=2)
        cls.addClassCleanup(cls.cluster.stop)

    def session(self) -> cairn.Session:
        session = cairn.Session(self.cluster.endpoint)
        self.addCleanup(session.close)
        return session

    def test_a_round_applies_what_was_pushed(self):
        job = opened(self.session(), "applies")
        round_ = job.round_begin(20)
        self.assertEqual((round_.info.step, round_.info.rank, round_.info.world), (0, 0, 1))
        round_.push("w", floats(2, 2, 2, 2, 2, 2))
        result = round_.commit(timeout=20)  # b was not pushed: its gradient is 0
        self.assertTrue(result.applied and result.finite)
        self.assertAlmostEqual(result.grad_norm, math.sqrt(24), places=5)
        self.assertEqual(fetched(job, "w", result.version, 6), [-1, 0, 1, 2, 3, 4])
        self.assertEqual(fetched(job, "b", result.version, 1), [7])
        self.assertEqual(fetched(job, "ice", result.version, 2), [8, 9])
        self.assertGreaterEqual(job.stats().pushed_bytes, 24)

    def test_a_second_worker_finds_the_state_and_a_reader_reads_it(self):
        first = opened(self.session(), "found")
        result = first.round_begin(20).commit(timeout=20)
        first.close()
        second = opened(self.session(), "found")
        self.assertEqual(second.version_wait().step, 1)
        reader = self.session().open_reader("found", timeout=20)
        self.assertEqual(fetched(reader, "w", result.version, 6), [0, 1, 2, 3, 4, 5])

    def test_tensors_are_added_tied_and_thawed_and_the_job_is_opened_again(self):
        session = self.session()
        job = opened(session, "amended")
        late = cairn.Tensor("late", (2, 3), init=cairn.Init("constant", 5.0))
        with self.assertRaisesRegex(cairn.Invalid, "begins by its initializer"):
            job.amend(add=[cairn.Tensor("late", (2, 3))])
        job.amend(add=[late], ties={"w": "late"}, unfreeze_tensors={"ice": None})
        with self.assertRaisesRegex(cairn.Reopen, "open it again"):
            job.round_begin(20)
        job.close()
        job = opened(session, "amended")  # with the spec as it was
        version = job.version_wait()
        self.assertEqual(version, (2, 0))
        kinds = {tensor.name: (tensor.kind, tensor.alias_of) for tensor in job.tensors()}
        self.assertEqual(kinds["late"], ("trained", None))
        self.assertEqual(kinds["ice"], ("trained", None))
        self.assertEqual(kinds["w"][1], "late")
        self.assertEqual(fetched(job, "w", version, 6), [5] * 6)
        job.close()
        plain = [cairn.Tensor("w", (2, 3), alias_of="late"), cairn.Tensor("b", ()), cairn.Tensor("ice", (2,)),
                 cairn.Tensor("late", (2, 3))]  # as it is, without the initializer
        job = opened(session, "amended", dataclasses.replace(SPEC, tensors=plain))
        round_ = job.round_begin(20)
        round_.push("ice", floats(1, 1))
        result = round_.commit(timeout=20)
        self.assertNotEqual(fetched(job, "ice", result.version, 2), [8, 9])

    def test_a_leased_version_is_read_after_many_updates(self):
        job = opened(self.session(), "leased")
        reader = self.session().open_reader("leased", timeout=20)
        with reader.lease(ttl=60) as version:
            self.assertEqual(version, job.version_wait())
            for _ in range(5):
                round_ = job.round_begin(20)
                round_.push("w", floats(2, 2, 2, 2, 2, 2))
                round_.commit(timeout=20)
            with reader.lease(version, ttl=1) as again:  # the same one: it goes on after this block
                self.assertEqual(again, version)
            self.assertEqual(fetched(reader, "w", version, 6), [0, 1, 2, 3, 4, 5])
        with self.assertRaises(cairn.VersionGone):
            while True:  # until the shards have heard that it ended
                fetched(reader, "w", version, 6)
        with self.assertRaisesRegex(cairn.VersionGone, "not kept any more"):
            reader.lease(version)
        with self.assertRaisesRegex(cairn.Invalid, "leases.ttl_max"):
            reader.lease(ttl=3600)
        lease = reader.lease()
        lease.renew(120)
        lease.end()
        lease.end()

    def test_a_job_tells_what_it_is(self):
        opened(self.session(), "told")
        reader = self.session().open_reader("told", timeout=20)
        self.assertEqual([(t.name, t.shape, t.kind, t.wire) for t in reader.tensors()],
                         [("b", (), "trained", "f32"), ("ice", (2,), "frozen", "f32"), ("w", (2, 3), "trained", "f32")])
        info = reader.describe()
        self.assertEqual((info.name, info.workers_min, info.clip_norm, info.on_nonfinite, info.initialized),
                         ("told", 1, 0.0, "skip", True))

    def test_a_unit_is_mapped_and_given_back(self):
        spec = cairn.JobSpec([cairn.Tensor("w", (2, 3), unit="both"), cairn.Tensor("b", (), unit="both"),
                              cairn.Tensor("ice", (2,), kind="frozen")], SPEC.groups)
        job = opened(self.session(), "mapped", spec)
        version = job.version_wait()
        job.prefetch(version, ["both"])
        with job.map(version, "both") as mapped:
            self.assertEqual(mapped.shapes, {"b": (), "w": (2, 3)})
            self.assertEqual(list(mapped.views["w"].cast("f")), [0, 1, 2, 3, 4, 5])
            with self.assertRaises(TypeError):
                mapped.views["b"][0] = 1
            user = pickle.PickleBuffer(mapped.views["b"])
            with self.assertRaisesRegex(cairn.Invalid, "still in use"):
                mapped.close()
            user.release()
        stats = job.stats()
        self.assertEqual((stats.maps, stats.maps_over_window, stats.mapped_bytes), (1, 0, 0))
        with self.assertRaises(cairn.NotFound):
            job.map(version, "neither")

    def test_the_parts_of_a_fused_tensor_are_put_and_pushed_one_by_one(self):
        spec = cairn.JobSpec(groups=SPEC.groups, tensors=[
            cairn.Tensor("w13", (2, 3)),
            *[cairn.Tensor(name, (1, 3), alias_of="w13", alias_box=cairn.Box((row, 0), (1, 3)))
              for row, name in enumerate(("w1", "w3"))]])
        job = self.session().open_worker("fused", spec, timeout=20)
        job.put("w3", floats(3, 4, 5))
        with self.assertRaisesRegex(cairn.NotReady, "only parts were put"):
            job.init_done(20)
        job.put("w1", floats(0, 1, 2))
        job.init_done(20)
        round_ = job.round_begin(20)
        round_.push("w1", floats(2, 2, 2))
        round_.push("w3", floats(4, 4, 4))
        version = round_.commit(timeout=20).version
        self.assertEqual(fetched(job, "w13", version, 6), [-1, 0, 1, 1, 2, 3])
        self.assertEqual(fetched(job, "w3", version, 3), [1, 2, 3])
        self.assertEqual((job.stats().assembled_bytes, job.stats().assembled_bytes_peak), (0, 24))

    def test_misuse_is_an_exception_that_says_what_to_do(self):
        session = self.session()
        job = opened(session, "misuse")
        version = job.version_wait()
        cases = [
            (cairn.Invalid, "has 24", lambda: job.fetch(version, "w", floats(1))),
            (cairn.NotFound, "no tensor ghost", lambda: job.fetch(version, "ghost", bytearray(4))),
            (cairn.NotFound, "no tensor ghost", lambda: job.fetch(version, "ghost", bytearray(4), box=EMPTY)),
            (cairn.Invalid, "usable", lambda: job.fetch(version, "b", b"abcd")),
            (cairn.Invalid, "f32, bf16", lambda: job.fetch(version, "b", floats(1), dtype="int8")),
            (cairn.NotReady, "not published", lambda: fetched(job, "b", cairn.Version(version.generation, 99), 1)),
            (cairn.Mismatch, "momentum", lambda: self.session().open_worker("misuse", cairn.JobSpec(
                SPEC.tensors, [cairn.Group(optimizer="sgd", lr=0.5, momentum=0.9)]), timeout=20)),
            (cairn.NotFound, "nowhere", lambda: session.open_reader("nowhere", timeout=20)),
            (cairn.Invalid, "finite", lambda: job.version_wait(timeout=math.inf)),
            (cairn.Timeout, r"^cairn_version_wait for version \d+\.99 timed out", lambda: job.version_wait(
                cairn.Version(version.generation, 99), timeout=0.05)),
        ]
        for kind, words, call in cases:
            with self.subTest(kind=kind.__name__, words=words):
                with self.assertRaisesRegex(kind, words) as caught:
                    call()
                self.assertEqual(caught.exception.status, kind.status)
        round_ = job.round_begin(20)
        round_.push("b", floats(1))
        with self.assertRaisesRegex(cairn.Exists, "pushed in micro-batch 0 already"):
            round_.push("b", floats(1))
        with self.assertRaisesRegex(cairn.Invalid, "not trained"):
            round_.push("ice", floats(1, 1))

    def test_what_is_closed_says_so(self):
        session = self.session()
        job = opened(session, "closed")
        session.close()
        session.close()
        job.close()
        with self.assertRaises(cairn.BadHandle):
            job.version_wait()
        with self.assertRaises(cairn.BadHandle):
            session.open_reader("closed")

    def in_child(self, call) -> str:
        """What the call raises in a process that is forked from this one; a hang is ended."""
        here, there = os.pipe()
        child = os.fork()
        if child == 0:
            signal.alarm(20)
            try:
                said = f"returned {call()}"
            except BaseException as error:  # noqa: BLE001 - the child must not run the rest of the tests
                said = f"{type(error).__name__}: {error}"
            os.write(there, said.encode())
            os._exit(0)
        os.close(there)
        with open(here) as pipe:
            said = pipe.read()
        os.waitpid(child, 0)
        return said

    def test_a_forked_process_is_told_at_once(self):
        """Whatever it calls, and whoever held a lock when it was forked; the other process goes on."""
        session = self.session()
        job = opened(session, "forked")
        version, into = job.version_wait(), floats(0)
        pending, lease = job.fetch(version, "b", into), job.lease()
        round_ = job.round_begin(20)
        for name, call in {
                "wait": pending.wait, "done": pending.done, "begin": job.round_begin, "commit": round_.commit,
                "push": lambda: round_.push("b", floats(1)), "stats": job.stats, "describe": job.describe,
                "renew": lease.renew, "open": lambda: session.open_reader("forked"),
                "event_fd": lambda: session.event_fd, "snapshot": job.snapshot, "amend": job.amend}.items():
            with self.subTest(call=name):
                self.assertRegex(self.in_child(call), "^BadHandle: .* before this process was forked.*spawn")
        is_held, may_end = threading.Event(), threading.Event()

        def hold():
            with session._memory_lock, pending._lock:
                is_held.set()
                may_end.wait(60)

        holder = threading.Thread(target=hold)
        holder.start()
        is_held.wait(60)
        self.assertEqual(self.in_child(lambda: (job.close(), session.close())), "returned (None, None)")
        self.assertRegex(self.in_child(pending.done), "^BadHandle")
        may_end.set()
        holder.join()
        pending.wait(20)
        self.assertTrue(round_.commit(timeout=20).applied)

    def test_a_newer_member_fences_the_older(self):
        older = opened(self.session(), "fence")
        newer = self.session()
        with self.assertRaisesRegex(cairn.PlaceTaken, "takeover=True"):
            opened(newer, "fence")
        newer.open_worker("fence", SPEC, 20, takeover=True)  # as it says
        with self.assertRaises(cairn.Fenced):
            for _ in range(2):
                older.round_begin(20)

    def test_a_round_that_somebody_leaves_is_computed_again(self):
        first = opened(self.session(), "left")
        second = opened(self.session(), "left", cairn.JobSpec(SPEC.tensors, SPEC.groups, rank=1))
        round_ = first.round_begin(20)
        if round_.info.world == 1:  # the second one came after it was opened
            round_.commit(timeout=20)
            round_ = first.round_begin(20)
        self.assertEqual((round_.info.rank, round_.info.world), (0, 2))
        round_.push("b", floats(1))
        with self.assertRaisesRegex(cairn.Timeout, "1"):  # names the worker who is awaited
            round_.commit(timeout=0.2)
        second.close()
        with self.assertRaisesRegex(cairn.EpochChanged, "round"):
            round_.commit(timeout=20)
        again = first.round_begin(20)
        self.assertEqual((again.info.step, again.info.rank, again.info.world), (round_.info.step, 0, 1))
        again.push("b", floats(1))
        result = again.commit(timeout=20)
        self.assertEqual(fetched(first, "b", result.version, 1), [6.5])

    def test_a_snapshot_is_there_when_it_was_waited_for(self):
        job = opened(self.session(), "kept")
        name = job.snapshot(wait=True, timeout=30)
        self.assertEqual(self.cluster.ctl("snapshot", "show", "kept", name)["step"], 0)

    def test_the_newest_snapshot_is_restored_by_the_word_latest(self):
        job = opened(self.session(), "last")
        for step in range(2):
            job.round_begin(20).commit(timeout=20)
            job.snapshot(wait=True, timeout=30)
        job.round_begin(20).commit(timeout=20)
        job.close()
        self.cluster.ctl("job", "drop", "last", "--yes")
        self.assertEqual(self.cluster.ctl("snapshot", "restore", "last", "latest", "--yes")["step"], 2)
        self.assertEqual(self.session().open_reader("last", timeout=20).version_wait().step, 2)
        opened(self.session(), "never_saved")
        with self.assertRaisesRegex(RuntimeError, r"job never_saved has no committed snapshot.*\[CAIRN-E0006\]"):
            self.cluster.ctl("snapshot", "restore", "never_saved", "latest", "--yes")


class TheLibrary(unittest.TestCase):
    def test_one_that_cannot_be_found_is_named_with_a_remedy(self):
        with mock.patch.dict(os.environ, {"CAIRN_LIBRARY": "/nowhere/libcairn.so"}):
            with self.assertRaisesRegex(ImportError, "/nowhere/libcairn.so .*CAIRN_LIBRARY.*no such file.*Build Cairn"):
                _c._load()

    def test_torch_is_not_imported(self):
        program = "import cairn, sys; assert 'torch' not in sys.modules"
        done = subprocess.run([sys.executable, "-c", program], timeout=60)
        self.assertEqual(done.returncode, 0)

    def test_nobody_at_the_endpoint_is_said_in_time(self):
        with self.assertRaisesRegex(cairn.Unreachable, "/nowhere/socket"):
            cairn.connect("/nowhere/socket", connect_timeout=0.1)

    def test_who_has_no_token_hears_where_it_is_looked_for(self):
        with self.assertRaisesRegex(cairn.Refused, "127.0.0.1:1 is reached over TCP.*/nowhere/token"):
            cairn.connect("127.0.0.1:1", token_file="/nowhere/token")

    def test_the_environment_is_understood(self):
        clean = {k: v for k, v in os.environ.items() if k not in ("RANK", "WORLD_SIZE")}
        torchrun = {**clean, "RANK": "3", "WORLD_SIZE": "4", "LOCAL_RANK": "1"}
        for variables, wanted in ((clean, "single 0 1"), (torchrun, "torchrun 3 4")):
            program = "import cairn; e = cairn.env(); print(e.launcher, e.rank, e.world)"
            out = subprocess.run([sys.executable, "-c", program], env=variables, timeout=60, capture_output=True,
                                 text=True)
            self.assertEqual(out.stdout.strip(), wanted, out.stderr)


if __name__ == "__main__":
    main()
