"""Memory of a card through the package, without torch: what stands in for a tensor there lies in an emulated card
(tests/gpu/emulator), where this process can read and write only by calls of the driver, as on a real one. The shard's
state lies on that card, too."""

import array
import ctypes
import math
import os
import unittest
from types import SimpleNamespace
from unittest import mock

import cairn
from cairn import _c
from cluster import BIN, Cluster
from runner import main, skip

DRIVER = BIN.parent / "lib" / "emulated" / "libcuda.so.1"
SHAPE = (16, 64)
SPEC = cairn.JobSpec(tensors=[cairn.Tensor("w", SHAPE, "u"), cairn.Tensor("v", SHAPE, "u")],
                     groups=[cairn.Group(optimizer="sgd", lr=0.5)])


class Card:
    """The driver, as a trainer uses it: its primary context, which the library works in, too."""

    def __init__(self):
        self._driver, context, device = ctypes.CDLL(str(DRIVER)), ctypes.c_void_p(), ctypes.c_int()
        self._call("cuInit", 0)
        self._call("cuDeviceGet", ctypes.byref(device), 0)
        self._call("cuDevicePrimaryCtxRetain", ctypes.byref(context), device)
        self._call("cuCtxSetCurrent", context)

    def _call(self, name, *arguments):
        result = getattr(self._driver, name)(*arguments)
        if result != 0:
            raise RuntimeError(f"{name}: {result}")

    def stream(self) -> int:
        stream = ctypes.c_void_p()
        self._call("cuStreamCreate", ctypes.byref(stream), 1)  # beside the default stream
        return stream.value

    def write(self, address: int, values: array.array, stream: int) -> None:
        """Queued: the host memory has to stay as it is."""
        host, nbytes = values.buffer_info()[0], 4 * len(values)
        self._call("cuMemcpyHtoDAsync_v2", ctypes.c_uint64(address), ctypes.c_void_p(host), ctypes.c_size_t(nbytes),
                   ctypes.c_void_p(stream))

    def read(self, address: int, count: int, stream: int) -> array.array:
        values = array.array("f", bytes(4 * count))
        self._call("cuMemcpyDtoHAsync_v2", ctypes.c_void_p(values.buffer_info()[0]), ctypes.c_uint64(address),
                   ctypes.c_size_t(4 * count), ctypes.c_void_p(stream))
        self._call("cuStreamSynchronize", ctypes.c_void_p(stream))
        return values


class OnCard:
    """What the package asks of a tensor of float32 on card 0."""

    def __init__(self, address: int, shape=SHAPE):
        self.device, self.shape, self._address = SimpleNamespace(type="cuda", index=0), shape, address

    def data_ptr(self):
        return self._address

    def numel(self):
        return math.prod(self.shape)

    def element_size(self):
        return 4

    def is_contiguous(self):
        return True


def values(seed: int) -> array.array:
    return array.array("f", [(i * 37 + seed) % 101 - 50 for i in range(math.prod(SHAPE))])


class OnOneCard(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        if not DRIVER.exists():
            skip("the emulated driver is not built")
        patch = mock.patch.dict(os.environ, CAIRN_CUDA_DRIVER=str(DRIVER), CAIRN_TEST_EMULATED="1")
        patch.start()
        cls.addClassCleanup(patch.stop)
        cls.card = Card()
        cls.cluster = Cluster(1, "compute.backend=cuda")
        cls.addClassCleanup(cls.cluster.stop)

    def setUp(self):
        self.stream = self.card.stream()
        patch = mock.patch("cairn.memory.stream_now", lambda device: self.stream)
        patch.start()
        self.addCleanup(patch.stop)
        self.session = self.connect(card=0)

    def connect(self, card=None) -> cairn.Session:
        """As where torch computes on that card by now."""
        with mock.patch("cairn.session._card_in_use", lambda: 0 if card is None else _c.gpu(card)):
            session = cairn.Session(self.cluster.endpoint)
        self.addCleanup(session.close)
        return session

    def memory(self) -> OnCard:
        out = ctypes.c_void_p()
        status = _c.lib().cairn_alloc(self.session._living(), 4 * math.prod(SHAPE), _c.gpu(0), ctypes.byref(out))
        self.assertEqual(status, 0, _c.lib().cairn_error())
        return OnCard(out.value)

    def opened(self) -> cairn.Job:
        job = self.session.open_worker(self.id().rsplit(".", 1)[1], SPEC, timeout=20)
        for name, seed in (("w", 1), ("v", 2)):
            job.put(name, values(seed))
        job.init_done(20)
        return job

    def fetched(self, job, name: str, version) -> list:
        into = array.array("f", bytes(4 * math.prod(SHAPE)))
        job.fetch(version, name, into).wait(20)
        return list(into)

    def test_a_gradient_is_pushed_from_a_card_behind_what_its_stream_has(self):
        job, gradient, given = self.opened(), self.memory(), values(7)
        round_ = job.round_begin(20)
        self.card.write(gradient.data_ptr(), given, self.stream)
        push = round_.push_watched("w", gradient)
        round_.push("v", values(8))  # of host memory, beside it
        result = round_.commit(timeout=20)
        push.wait(20)
        expected = [w - 0.5 * g for w, g in zip(values(1), given)]
        self.assertEqual(self.fetched(job, "w", result.version), expected)
        self.assertEqual(job.stats().device_pushed_bytes, 4 * math.prod(SHAPE))

    def test_parameters_are_fetched_into_a_card(self):
        job, into = self.opened(), self.memory()
        job.fetch(job.version_wait(), "v", into).wait(20)
        self.assertEqual(self.card.read(into.data_ptr(), into.numel(), self.stream), values(2))
        self.assertEqual(job.stats().device_fetched_bytes, 4 * math.prod(SHAPE))

    def test_they_come_to_a_card_that_a_session_did_not_name_through_the_host(self):
        job = self.opened()
        self.session = self.connect()
        into = self.memory()
        with self.session.open_reader(job.name, 20) as reader:
            reader.fetch(reader.version_wait(), "v", into).wait(20)
            self.assertEqual(self.card.read(into.data_ptr(), into.numel(), self.stream), values(2))
            self.assertEqual(reader.stats().device_fetched_bytes, 0)

    def test_a_step_that_never_leaves_the_card(self):
        job, params, gradient = self.opened(), self.memory(), self.memory()
        for _ in range(2):
            round_ = job.round_begin(20)
            job.fetch(round_.info.version, "w", gradient).wait(20)
            round_.push("w", gradient)  # half of each is taken away
            result = round_.commit(timeout=20)
        job.fetch(result.version, "w", params).wait(20)
        self.assertEqual(self.card.read(params.data_ptr(), params.numel(), self.stream),
                         array.array("f", [w / 4 for w in values(1)]))
        stats = job.stats()
        self.assertEqual((stats.device_pushed_bytes, stats.device_fetched_bytes),
                         (stats.pushed_bytes, stats.fetched_bytes))

    def test_a_unit_is_mapped_where_it_is_published_on_the_card(self):
        job = self.opened()
        with job.map(job.version_wait(), "u", card=0) as mapped:
            self.assertEqual(mapped.views, {})  # no code of this process may follow these
            for name, seed in (("w", 1), ("v", 2)):
                address, nbytes = mapped.places[name]
                self.assertEqual(self.card.read(address, nbytes // 4, self.stream), values(seed))
        self.assertEqual(job.stats().maps_lent, 1)

    def test_memory_of_the_shards_is_let_go_of_and_taken_again(self):
        job, gradient = self.opened(), self.memory()
        with job.map(job.version_wait(), "u", card=0):
            with self.assertRaisesRegex(cairn.Busy, "unit"):
                self.session.detach_memory(5)
        self.session.detach_memory(20)
        self.session.attach_memory(20)
        round_ = job.round_begin(20)
        job.fetch(round_.info.version, "w", gradient).wait(20)
        round_.push("w", gradient)
        self.assertEqual(self.fetched(job, "w", round_.commit(timeout=20).version), [w / 2 for w in values(1)])

    def test_gradients_leave_the_card_with_it(self):
        class Sharer:
            said = []

            def leave_cards(self):
                self.said.append("leave")

            def share_again(self):
                self.said.append("share")

        self.opened()
        self.session._sharers.add(Sharer())
        self.session.detach_memory(20)
        self.session.attach_memory(20)
        self.assertEqual(Sharer.said, ["leave", "share"])
        self.session._readers.add(lambda: False)
        with self.assertRaisesRegex(cairn.Busy, "pass is under way"):
            self.session.detach_memory(5)
        self.session._readers.clear()

    def test_the_library_says_which_cards_it_works_on(self):
        self.assertTrue(self.session._takes(SimpleNamespace(type="cuda", index=0)))
        with self.assertRaisesRegex(cairn.CairnError, "7"):
            self.session._takes(SimpleNamespace(type="cuda", index=7))
        tensor = OnCard(self.memory().data_ptr())
        tensor.device.index = 7
        with self.assertRaisesRegex(cairn.Invalid, "7"):
            self.opened().round_begin(20).push("w", tensor)

    def test_a_card_without_room_is_said_once_and_asked_again(self):
        def room(options):
            self.assertEqual(ctypes.CDLL(str(DRIVER)).cairn_emulator_set(options), 1)

        card = SimpleNamespace(type="cuda", index=0)
        with mock.patch.object(self.session, "_cards", {}):
            with self.assertLogs("cairn", "WARNING") as logs:
                for _ in range(2):
                    room(b"alloc_fails=1")
                    self.assertFalse(self.session._takes(card))
            self.assertEqual(len(logs.output), 1)
            self.assertIn("cuda:0 go through the host", logs.output[0])
            self.assertTrue(self.session._takes(card))


if __name__ == "__main__":
    main()
