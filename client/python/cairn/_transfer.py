"""Parameters from the servers into a model's memory, and the initial state the other way."""

from __future__ import annotations

import contextlib
from typing import Any, Callable, Dict, Iterable, Iterator, List, Optional, Tuple, TypeVar

import torch

from ._model import WIRE_TORCH, Slot
from .errors import CairnError, Timeout, VersionGone
from .job import Job, Piece
from .memory import can_lend, is_apart
from .operation import Operation, wait_all
from .spec import Box, Version


# ==== tensors on cards ====

# Tensors on NVIDIA cards: a stream beside the trainer's own, and memory of the library as a tensor.
#
# What is computed on a card is ordered by events, and no call here waits for a stream but `settle`:
#
#     the trainer's stream   backward of a layer ─┐        ┌─ backward of the next one ...
#     the stream beside it                        └─ copy of the gradient ─ push
#
# The library reads a buffer behind what its stream has at the call (cairn.h, cairn_mem.stream), and an operation that
# has ended is over on the card, too: whoever waits for a fetch may give any stream what uses it.

_beside: Dict[torch.device, Any] = {}  # streams


class _Address:
    """What torch takes as memory of a card; its tensors keep this alive, and so `keeps`."""

    def __init__(self, address: int, nbytes: int, keeps: Any):
        self.keeps = keeps
        self.__cuda_array_interface__ = {"shape": (nbytes,), "typestr": "|u1", "data": (address, False),
                                         "strides": None, "version": 2}  # bytes: it knows no bfloat16


def tensor_at(address: int, nbytes: int, device: torch.device, keeps: Any = None) -> torch.Tensor:
    """The bytes there, on that card, as uint8."""
    return torch.as_tensor(_Address(address, nbytes, keeps), device=device)


@contextlib.contextmanager
def beside(device: torch.device, *read: torch.Tensor) -> Iterator[None]:
    """Inside, a card's stream is one beside the trainer's, behind all that the trainer's has by now. The memory of
    `read` is given to nobody else before what is queued inside has read it. On the host this is nothing."""
    if device.type != "cuda":
        yield
        return
    side = _beside.get(device)
    if side is None:
        side = _beside.setdefault(device, torch.cuda.Stream(device))
    side.wait_stream(torch.cuda.current_stream(device))
    with torch.cuda.stream(side):
        yield
    for tensor in read:
        tensor.record_stream(side)


def settle(device: torch.device) -> None:
    """Waits until what was queued beside is done: memory that it writes to is about to go."""
    if device in _beside:
        _beside[device].synchronize()


def settle_passes(device: torch.device) -> None:
    """The same of the trainer's stream, which reads memory that is about to go."""
    if device.type == "cuda":
        torch.cuda.current_stream(device).synchronize()


# ==== into a model's memory ====

_IN_FLIGHT = 256  # tensors that are asked for at once
TRIES = 20  # a version that is gone, because others go on, is asked for again as a newer one
_T = TypeVar("_T")


def of_newest(job: Job, use: Callable[[Version], _T], timeout: float, at_least: Version = Version(0, 0)) -> _T:
    """What `use` makes of the newest version."""
    for left in reversed(range(TRIES)):
        try:
            return use(job.version_wait(at_least, timeout))
        except VersionGone:
            if left == 0:
                raise
    raise AssertionError("TRIES is 0")


class Landing:
    """A fetch on its way into a tensor: straight into its memory, or through a dense tensor of the wire's dtype where
    that cannot be lent. On a card it comes behind what the trainer's stream has by now, and beside what that is
    given later."""

    def __init__(self, job: Job, version: Version, name: str, wire: str, into: torch.Tensor,
                 plane: Optional[str] = None, box: Optional[Box] = None):
        self._into, self._failure = into, None  # type: torch.Tensor, Optional[CairnError]
        dtype = WIRE_TORCH[wire]
        here = into.device if job._session._takes(into.device) else torch.device("cpu")
        direct = into.dtype == dtype and can_lend(into) and is_apart(into) and here == into.device
        if here.type == "cuda":
            direct = direct and into.is_contiguous()  # the library writes to no other there
        self._staged = None if direct else torch.empty(into.shape, dtype=dtype, device=here)
        with beside(here):
            self.operation: Operation = job.fetch(version, name, into if direct else self._staged, plane=plane,
                                                  dtype=wire, box=box)

    @property
    def staged_bytes(self) -> int:
        return 0 if self._staged is None else self._staged.numel() * self._staged.element_size()

    def wait(self, timeout: float) -> None:
        """Until it is there. A failure stays one, however often it is asked for; Timeout is none."""
        if self._failure is not None:
            raise self._failure
        try:
            self.operation.wait(timeout)
        except Timeout:
            raise
        except CairnError as error:
            self._failure = error
            raise
        if self._staged is not None:
            self._into.copy_(self._staged)
            self._staged = None


def _is_direct(into: torch.Tensor, wire: str) -> bool:
    return into.device.type == "cpu" and into.dtype == WIRE_TORCH[wire] and into.numel() > 0 and into.is_contiguous()


def _box_of(slot: Slot, whole: bool) -> Optional[Box]:
    """Of one that is whole, as all of this worker's may be, there is nothing to say."""
    if slot.box is None or not whole:
        return slot.box
    return Box.whole(slot.whole or tuple(slot.parameter.shape))


def load(job: Job, version: Version, targets: List[Tuple[Slot, torch.Tensor]], timeout: float,
         wire: Optional[str] = None, plane: Optional[str] = None, whole: bool = False) -> None:
    """Tensors of one version; `wire` and `plane` if they are not those of the slots. `whole`: not the parts that this
    worker holds."""
    direct = [(slot, into) for slot, into in targets if _is_direct(into, wire or slot.wire)]
    if direct:
        targets = [(slot, into) for slot, into in targets if not _is_direct(into, wire or slot.wire)]
        pieces = [Piece(slot.name, into.data_ptr(), into.numel() * into.element_size(), wire or slot.wire,
                        _box_of(slot, whole)) for slot, into in direct]
        fetched = job.fetch_many(version, pieces, plane, direct)
        try:
            load(job, version, targets, timeout, wire, plane, whole)
        finally:
            fetched.wait(timeout)
        return
    for first in range(0, len(targets), _IN_FLIGHT):
        landings: List[Landing] = []
        with torch.no_grad():
            try:
                for slot, into in targets[first:first + _IN_FLIGHT]:
                    landings.append(Landing(job, version, slot.name, wire or slot.wire, into, plane,
                                            None if whole else slot.box))
            finally:
                wait_all(landings, timeout)


def put(job: Job, slots: Iterable[Slot]) -> None:
    """The initial state, fp32, as far as this worker holds it and the shards do not make it."""
    for slot in slots:
        if slot.init is not None:
            continue
        master = slot.parameter.detach().to(device="cpu", dtype=torch.float32)
        job.put(slot.name, master if can_lend(master) else master.contiguous(), box=slot.box)
