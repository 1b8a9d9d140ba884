"""Where a gradient is from autograd's hook until its push is over, and not longer: in memory of cairn_alloc, which the
shards of this host map and read from where it lies, or, without room for it there, where autograd left it (overflow;
the library copies it on its way). So a backward pass never waits for a push, nor for the other ranks that a push waits
for; what that costs is counted.

A gradient on a card is copied on that card, by a stream beside the trainer's (_transfer.py): the shard there reads
it where it then lies, and autograd's own memory is free again behind the copy. Where no shard has that card the library
brings it to the host on its way.

Why autograd does not write to the shared memory itself. It adds to a .grad that is there, so a view of this memory
would have to be filled with -0.0 before (0 + -0 is 0): two passes over it more than copying what autograd hands over
without a copy when .grad is None. Measured, four Linear(2048, 2048), 4 rows, a quiet machine: a backward pass with a
view takes 1.11 (torch 1.13) and 1.43 (2.15) of one that copies; with 64 rows of eight Linear(1024, 1024) 1.02. And
`.grad` never shows this memory, so that nothing of the trainer's outlives it.
"""

from __future__ import annotations

import ctypes
import threading
from collections import deque
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from typing import Any, Callable, Deque, Dict, Iterable, Iterator, List, Mapping, Optional, Sequence, Tuple

import torch

from . import _c, _log, _transfer
from ._call import check
from ._model import Slot, Unit
from .errors import Busy, NoMemory
from .job import Piece
from .memory import can_lend
from .operation import Operation
from .session import Session


# ==== small gradients ====

# Small gradients of the host are pushed together: each by itself would cost more than its bytes do. Hooks collect them
# until there are so many, or until the backward pass is over; then they go as one list, out of one range of the shared
# memory. Large ones go at once, as they come, so that pushes and the backward pass still overlap.

SMALL_BYTES = 64 << 10  # of a gradient that waits for others
_BYTES, _COUNT = 1 << 20, 512  # then they go
_SMALL_DTYPES = (torch.float32, torch.bfloat16)  # as the library takes them

Waiting = List[Tuple[Slot, torch.Tensor]]


class Together:
    """Those that wait."""

    def __init__(self) -> None:
        self._waiting: Waiting = []
        self._nbytes = 0
        self._has_begun = False

    @staticmethod
    def takes(gradient: torch.Tensor) -> bool:
        return (gradient.device.type == "cpu" and gradient.dtype in _SMALL_DTYPES and gradient.is_contiguous() and
                0 < gradient.numel() * gradient.element_size() <= SMALL_BYTES)

    def add(self, slot: Slot, gradient: torch.Tensor) -> bool:
        """Whether it is time for them to go."""
        self._waiting.append((slot, gradient.detach()))
        self._nbytes += gradient.numel() * gradient.element_size()
        return self._nbytes >= _BYTES or len(self._waiting) >= _COUNT

    def begins(self) -> bool:
        """Once for those of a backward pass: somebody waits."""
        begins, self._has_begun = bool(self._waiting) and not self._has_begun, self._has_begun or bool(self._waiting)
        return begins

    def take(self) -> Waiting:
        waiting, self._waiting, self._nbytes = self._waiting, [], 0
        return waiting

    def end(self) -> None:
        """Of the backward pass."""
        self._has_begun = False


# ==== the gradients ====

_ALIGN = 64
_NAMES = {torch.float32: "f32", torch.bfloat16: "bf16"}
_DTYPES = {torch.float16: torch.float32}  # widened, since it is not pushed
_LOOKS = 8  # pushes under way that are asked about when a gradient comes: not all of them, each time


class Hook:
    """Calls when a parameter's .grad has all of a backward pass, behind the hooks of others there."""

    def __init__(self, parameter: torch.Tensor, call: Callable[[], None]):
        self._call = call
        self._lock = threading.Lock()  # a job may be closed by another thread than the one that trains
        self._is_removed = False
        if hasattr(parameter, "register_post_accumulate_grad_hook"):  # torch 2.1 and later
            self._on: Any = parameter
        else:  # the node lives as long as somebody has it
            with torch.enable_grad():
                self._on = parameter.expand_as(parameter).grad_fn.next_functions[0][0]  # type: ignore[union-attr]
        self._register()

    def _register(self) -> None:
        register = getattr(self._on, "register_post_accumulate_grad_hook", None) or self._on.register_hook
        self._handle = register(lambda *_: self._came())

    def _came(self) -> None:
        """Others that were registered since its last look are called behind this one, and are to see the gradient
        first: then it is taken at the end of the backward pass."""
        if self._is_last():
            return self._call()
        torch.autograd.Variable._execution_engine.queue_callback(self._come_late)

    def _come_late(self) -> None:
        self.be_last()
        self._call()

    def _is_last(self) -> bool:
        there = self._handle.hooks_dict_ref()
        return there is None or next(reversed(there), self._handle.id) == self._handle.id

    def be_last(self) -> None:
        """Behind those that were registered since, too."""
        with self._lock:
            if not self._is_removed and not self._is_last():
                self._handle.remove()
                self._register()

    def remove(self) -> None:
        with self._lock:
            self._is_removed = True
            self._handle.remove()


class Place:
    """One gradient that can be lent. `region` and `at`: where in shared memory; None: it is memory of its own."""

    def __init__(self, tensor: Any, nbytes: int, region: "Optional[_Region]" = None, at: int = 0):
        self.tensor, self.nbytes, self.region, self.at = tensor, nbytes, region, at
        self.push: Optional[Operation] = None

    def is_free(self) -> bool:
        """Asks, and ends the operation of a push that is over."""
        return self.push is None or self.push.done()


class _Ranges:
    """What is free of `nbytes` bytes: the first range that has room is taken."""

    def __init__(self, nbytes: int):
        self._free: List[Tuple[int, int]] = [(0, nbytes)] if nbytes > 0 else []  # in order, none beside another

    def take(self, nbytes: int) -> Optional[int]:
        for i, (at, room) in enumerate(self._free):
            if room >= nbytes:
                self._free[i:i + 1] = [(at + nbytes, room - nbytes)] if room > nbytes else []
                return at
        return None

    def give(self, at: int, nbytes: int) -> None:
        self._free = sorted(self._free + [(at, nbytes)])
        joined: List[Tuple[int, int]] = []
        for start, room in self._free:
            if joined and sum(joined[-1]) == start:
                joined[-1] = (joined[-1][0], joined[-1][1] + room)
            else:
                joined.append((start, room))
        self._free = joined


class _Region:
    """Shared memory of a device, from cairn_alloc: the shards that can read it where it lies."""

    def __init__(self, session: Session, device: torch.device, nbytes: int):
        out = ctypes.c_void_p()
        number = _c.gpu(device.index) if device.type == "cuda" else 0
        check(_c.lib().cairn_alloc(session._living(), nbytes, number, ctypes.byref(out)))
        self.device, self.nbytes, self.ranges = device, nbytes, _Ranges(nbytes)
        self.address = out.value or 0
        self._bytes = (_transfer.tensor_at(self.address, nbytes, device) if device.type == "cuda" else
                       torch.frombuffer((ctypes.c_char * nbytes).from_address(self.address), dtype=torch.uint8))

    def tensor(self, at: int, dtype: torch.dtype, shape: torch.Size) -> torch.Tensor:
        nbytes = shape.numel() * torch.empty((), dtype=dtype).element_size()
        return self._bytes[at:at + nbytes].view(dtype).view(shape)


class Gradients:
    """Those that are on their way. Nothing of the shared memory, `nbytes`, is used after close()."""

    def __init__(self, session: Session):
        self._session = session
        self._regions: Dict[torch.device, _Region] = {}
        self._pushed: Deque[Place] = deque()  # whose push may be under way
        self.overflow = self.peak = 0  # bytes: in memory of their own now, and that and the shared memory at most

    @property
    def nbytes(self) -> int:
        return sum(region.nbytes for region in self._regions.values())

    def share(self, sizes: Mapping[torch.device, int]) -> None:
        """Gets the shared memory, so many bytes of each device; none of one that the library does not work on, or of
        a card without room for it: gradients there are pushed from where autograd left them."""
        self._sizes = sizes
        for device, nbytes in sizes.items():
            if nbytes > 0 and device not in self._regions and self._session._takes(device):
                try:
                    self._regions[device] = _Region(self._session, device, nbytes)
                except NoMemory as why:
                    if device.type != "cuda":
                        raise
                    _log.without_room(device, str(why))
        self.peak = max(self.peak, self.nbytes)
        self._session._readers.add(self._settle)
        self._session._sharers.add(self)

    @contextmanager
    def sharing(self, sizes: Mapping[torch.device, int]) -> Iterator[None]:
        """The same beside the block, as far as it is of the host: a thread takes that memory."""
        host = {device: nbytes for device, nbytes in sizes.items() if device.type == "cpu"}
        with ThreadPoolExecutor(1, "cairn-share") as beside:
            taken = beside.submit(self.share, host)
            yield
        taken.result()
        self.share(sizes)

    def share_again(self) -> None:
        """After `leave_cards`."""
        self.share(self._sizes)

    def place(self, slot: Slot, gradient: torch.Tensor) -> Place:
        """The gradient, ready to be pushed; to be given to `pushing` or `drop`."""
        self.reclaim(_LOOKS)
        place = self._shared(slot, gradient)
        if place is None:
            there = gradient.device if self._session._takes(gradient.device) else "cpu"
            own = gradient.detach().to(device=there, dtype=_dtype(gradient))
            is_lent = can_lend(own) and (own.device.type == "cpu" or own.is_contiguous())
            lent = own if is_lent else own.contiguous()  # on a card: else it would come through the host
            place = Place(lent, lent.numel() * lent.element_size())
            self.overflow += place.nbytes
        self.peak = max(self.peak, self.nbytes + self.overflow)
        return place

    def place_together(self, waiting: Waiting) -> Tuple[Place, List[Piece]]:
        """Small ones of the host, in one range of the shared memory, or where autograd left them; and where each is."""
        self.reclaim(_LOOKS)
        sizes = [gradient.numel() * gradient.element_size() for _, gradient in waiting]
        total = sum(-(-nbytes // _ALIGN) * _ALIGN for nbytes in sizes)
        with self._session._writes() as is_open:
            region = self._regions.get(waiting[0][1].device)
            at = region.ranges.take(total) if region is not None and is_open else None
            if region is None or at is None:
                place, addresses = Place(waiting, sum(sizes)), [gradient.data_ptr() for _, gradient in waiting]
                self.overflow += place.nbytes
            else:
                place, addresses, address = Place(None, total, region, at), [], region.address + at
                for (_, gradient), nbytes in zip(waiting, sizes):
                    ctypes.memmove(address, gradient.data_ptr(), nbytes)
                    addresses.append(address)
                    address += -(-nbytes // _ALIGN) * _ALIGN
        self.peak = max(self.peak, self.nbytes + self.overflow)
        return place, [Piece(slot.name, address, nbytes, _NAMES[gradient.dtype])
                       for (slot, gradient), address, nbytes in zip(waiting, addresses, sizes)]

    def _shared(self, slot: Slot, gradient: torch.Tensor) -> Optional[Place]:
        """A copy in the shared memory, if that has room."""
        with self._session._writes() as is_open:  # the memory goes when the session is closed, by whichever thread
            nbytes, region = room(slot), self._regions.get(gradient.device)
            at = region.ranges.take(nbytes) if region is not None and is_open and nbytes > 0 else None
            if region is None or at is None:
                return None
            place = Place(region.tensor(at, _dtype(gradient), slot.parameter.shape), nbytes, region, at)
            with torch.no_grad(), _transfer.beside(gradient.device, gradient):
                place.tensor.copy_(gradient.detach())
            return place

    def pushing(self, place: Place, push: Operation) -> None:
        place.push = push
        self._pushed.append(place)

    def drop(self, place: Place) -> None:
        """It is on loan to nobody."""
        if place.region is None:
            self.overflow -= place.nbytes
        else:
            place.region.ranges.give(place.at, place.nbytes)

    def reclaim(self, looks: Optional[int] = None) -> None:
        """Gives back what was pushed; asks about so many that are under way at most, from the first on. None: all."""
        if not self._session._is_mine():
            return
        with self._session._memory_lock:
            waiting: List[Place] = []
            while looks is None or len(waiting) < looks:
                try:
                    place = self._pushed.popleft()
                except IndexError:
                    break
                if place.is_free():
                    self.drop(place)
                else:
                    waiting.append(place)
            self._pushed.extendleft(reversed(waiting))

    def close(self) -> None:
        """Gives the shared memory back; what is still on loan goes with the session. Twice is once."""
        if not self._session._is_mine():
            return
        with self._session._memory_lock:
            self.reclaim()
            regions, self._regions = list(self._regions.values()), {}
            is_safe = not self._session._is_written_to  # else this is a signal handler amid a copy: with the session
            self._session._readers.discard(self._settle)
            self._session._sharers.discard(self)
            for region in regions:
                _transfer.settle(region.device)
                if is_safe and not self._session.closed:
                    with suppress(Busy):
                        self._free(region)

    def leave_cards(self) -> None:
        """Gives back what is on cards, until `share` is called again; of pushes that are under way it stays."""
        with self._session._memory_lock:
            self.reclaim()
            busy = {place.region for place in self._pushed}
            for region in [one for one in self._regions.values() if one.device.type == "cuda" and one not in busy]:
                _transfer.settle(region.device)
                self._free(region)
                del self._regions[region.device]

    def _free(self, region: _Region) -> None:
        check(_c.lib().cairn_free(self._session._living(), region.address))

    def _settle(self) -> bool:
        """Before the session ends, and its memory with it."""
        for device in self._regions:
            _transfer.settle(device)
        return True


def _dtype(tensor: torch.Tensor) -> torch.dtype:
    return _DTYPES.get(tensor.dtype, tensor.dtype)


def room(slot: Slot) -> int:
    """Bytes of shared memory for its gradient."""
    if not slot.trained or slot.device.type not in ("cpu", "cuda"):
        return 0
    nbytes = slot.parameter.numel() * torch.empty((), dtype=_dtype(slot.parameter)).element_size()
    return -(-nbytes // _ALIGN) * _ALIGN


def window_bytes(slots: Iterable[Slot], units: Sequence[Unit], window: int) -> int:
    """For the gradients of these slots, of as many units as are gathered at once (of the root: of one parameter)."""
    chosen = set(slots)
    of_root = [room(slot) for slot in chosen if not slot.units]
    of_units = [sum(room(slot) for slot in unit.slots if slot in chosen) for unit in units]
    return window * max(of_units + of_root, default=0)
