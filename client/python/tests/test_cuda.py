"""Tensors on a card, as far as that shows without one: in which order streams are asked to wait, what goes through the
host where the library works on no card, and whose memory is shared."""

import contextlib
import unittest
from types import SimpleNamespace
from unittest import mock

from runner import main
import torched  # before torch: the file is skipped where there is none

import torch
import cairn
from cairn import _c, _gradients, _options, _transfer
from cairn._model import Slot
from cairn.memory import Memory

CARD = torch.device("cuda", 0)


class Stream:
    def __init__(self, name, said):
        self.cuda_stream, self.name, self.said = len(name), name, said

    def wait_stream(self, other):
        self.said.append(f"{self.name} waits for {other.name}")

    def synchronize(self):
        self.said.append(f"{self.name} is waited for")


class Streams:
    """In place of torch.cuda, whose streams this torch may not have."""

    def __init__(self):
        self.said = []
        self.current = Stream("trainer", self.said)

    def Stream(self, device):
        return Stream(f"beside {device}", self.said)

    def current_stream(self, device):
        return self.current

    @contextlib.contextmanager
    def stream(self, stream):
        before, self.current = self.current, stream
        try:
            yield
        finally:
            self.current = before


class Tensor(SimpleNamespace):
    """What is asked of a tensor on a card."""

    def __init__(self, streams):
        super().__init__(device=CARD, shape=(4, 8))
        self.streams = streams

    def data_ptr(self):
        return 1 << 40

    def numel(self):
        return 32

    def element_size(self):
        return 2

    def is_contiguous(self):
        return True

    def record_stream(self, stream):
        self.streams.said.append(f"kept for {stream.name}")


class Order(unittest.TestCase):
    def setUp(self):
        self.streams = Streams()
        for patch in (mock.patch.object(torch, "cuda", self.streams), mock.patch.dict(_transfer._beside, clear=True)):
            patch.start()
            self.addCleanup(patch.stop)

    def test_a_stream_beside_begins_behind_the_trainers_and_keeps_what_it_reads(self):
        tensor = Tensor(self.streams)
        with _transfer.beside(CARD, tensor):
            self.assertEqual(self.streams.current.name, "beside cuda:0")
        self.assertEqual(self.streams.current.name, "trainer")
        with _transfer.beside(CARD):
            pass
        self.assertEqual(self.streams.said, ["beside cuda:0 waits for trainer", "kept for beside cuda:0",
                                             "beside cuda:0 waits for trainer"])

    def test_on_the_host_there_is_no_stream(self):
        with _transfer.beside(torch.device("cpu"), torch.ones(2)):
            pass
        _transfer.settle(torch.device("cpu"))
        self.assertEqual(self.streams.said, [])

    def test_memory_of_a_card_has_its_number_and_the_stream_that_computes(self):
        memory = Memory(Tensor(self.streams), writable=True)
        self.assertEqual((memory.address, memory.nbytes), (1 << 40, 64))
        self.assertEqual((memory.device, memory.stream), (_c.gpu(0), self.streams.current.cuda_stream))
        with _transfer.beside(CARD):
            self.assertEqual(Memory(Tensor(self.streams), True).stream, len("beside cuda:0"))
        host = Memory(bytearray(8), writable=True)
        self.assertEqual((host.device, host.stream), (0, None))

    def test_what_is_queued_beside_is_waited_for_before_memory_goes(self):
        with _transfer.beside(CARD):
            pass
        _transfer.settle(CARD)
        self.assertEqual(self.streams.said[-1], "beside cuda:0 is waited for")

    def test_another_kind_of_device_is_refused(self):
        tensor = Tensor(self.streams)
        tensor.device = SimpleNamespace(type="xpu", index=0)
        with self.assertRaisesRegex(cairn.Invalid, "NVIDIA cards"):
            Memory(tensor, writable=False)


class Shared(torched.ClusterCase):
    def test_each_device_has_shared_memory_for_its_own_gradients(self):
        def slot(elems, device):
            parameter = torch.nn.Parameter(torch.zeros(elems))
            made = Slot("w", parameter, "f32", "trained")
            patch = mock.patch.object(Slot, "device", property(lambda self: self.where), create=True)
            patch.start()
            self.addCleanup(patch.stop)
            made.where = device
            return made

        host, card = slot(64, torch.device("cpu")), slot(32, CARD)
        sizes = _options.gradient_bytes(None, [host, card], 2, 2, [], 2)
        self.assertEqual(sizes, {torch.device("cpu"): 2 * 256, CARD: 2 * 128})
        self.assertEqual(_options.gradient_bytes(False, [host, card], 2, 2, [], 2), {})

    def test_where_the_library_works_on_no_card_all_goes_through_the_host(self):
        with mock.patch.dict("os.environ", CAIRN_CUDA_DRIVER="/nonexistent"):
            session = self.connect()
            with self.assertLogs("cairn", "WARNING") as logs:
                self.assertFalse(session._takes(CARD))
            self.assertFalse(session._takes(CARD))  # and says so once
        self.assertEqual(len(logs.output), 1)
        self.assertIn("cuda:0 go through the host", logs.output[0])
        gradients = _gradients.Gradients(session)
        gradients.share({CARD: 4096, torch.device("cpu"): 4096})
        self.addCleanup(gradients.close)
        self.assertEqual(list(gradients._regions), [torch.device("cpu")])
        self.assertFalse(session._takes(torch.device("meta")))

    def test_gradients_on_a_card_without_room_for_them_are_pushed_from_where_they_are(self):
        session, region = self.connect(), _gradients._Region

        def full(session, device, nbytes):
            if device == CARD:
                raise cairn.NoMemory(2, "a full card")
            return region(session, device, nbytes)

        gradients = _gradients.Gradients(session)
        self.addCleanup(gradients.close)
        with mock.patch.object(session, "_takes", lambda device: True), mock.patch.object(_gradients, "_Region", full):
            with self.assertLogs("cairn", "WARNING") as logs:
                gradients.share({CARD: 4096, torch.device("cpu"): 4096})
        self.assertIn("a full card", logs.output[0])
        self.assertEqual(list(gradients._regions), [torch.device("cpu")])

    def test_memory_that_cannot_be_given_back_is_said_and_stays(self):
        session = self.connect()
        gradients = _gradients.Gradients(session)
        gradients.share({torch.device("cpu"): 4096})
        device = gradients._regions[torch.device("cpu")]
        device.device, address = CARD, device.address  # as if it were
        gradients._regions = {CARD: device}
        with mock.patch.object(_gradients._transfer, "settle"):
            device.address += 64
            with self.assertRaises(cairn.Invalid):
                gradients.leave_cards()
            self.assertEqual(list(gradients._regions), [CARD])
            device.address = address
            gradients.leave_cards()
            self.assertEqual(list(gradients._regions), [])
            gradients.close()


if __name__ == "__main__":
    main()
