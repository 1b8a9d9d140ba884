"""Stage 3: a unit's parameters are in memory while they are used, and at most a window of units at once.

A parameter that is out is of a class that raises when its values are used (hide, below), and its own storage, which
autograd's saved tensors share, is resized to nothing. Gathering makes the storage anew and fetches into it. Where all
of a unit was published on this host its parameters are lent instead (below): nothing is fetched, what autograd saved
stays where it is, and letting go takes the values away, not the memory, which is lent until the version ends.

When is a unit used? Forward: from its forward-pre hook to its forward hook. Backward: from the first gradient of an
output (a hook on that tensor) until a unit that ended before it in the forward pass begins its own. That is enough:
autograd runs the nodes of a graph from the last made to the first, so that then every node of the later
unit has run. A parameter is let go even earlier, when its gradient is complete: then no node needs it.
"""

from __future__ import annotations

import ctypes
import functools
import sys
import threading
import time
from typing import (Any, Callable, Dict, FrozenSet, Iterator, List, Mapping, NamedTuple, Optional, Sequence, Tuple,
                    Type, Union)

import torch
from torch import nn

from . import _transfer
from ._changed import bits
from ._model import Outside, Slot, Unit, before_forward, is_compiled
from ._transfer import Landing
from .errors import CairnError, Invalid, RolledBack, Stale, Timeout, VersionGone
from .job import Job
from .memory import Memory as OnLoan
from .memory import stream_now
from .operation import Mapped, Operation, wait_all
from .spec import Version
from .timeline import Timeline


# ==== parameters that are not here ====

# What a parameter of stage 3 is while it is not here: it has its shape and dtype, and whoever uses its values is told
# so, instead of being given an empty tensor. The way of torch's own UninitializedParameter: the object's class changes.
#
# What it shows besides is one NaN, expanded: no memory, and no plausible number for code that asks no torch function.

_ALLOWED = frozenset("""size dim ndimension numel nelement element_size stride storage_offset get_device is_contiguous
    is_complex is_floating_point is_signed is_same_size __hash__ __len__ requires_grad_ register_hook
    register_post_accumulate_grad_hook has_names""".split())  # of what it is, not of its values
_VALUES = frozenset("data T H mT mH real imag".split())  # properties that are not


def _is_harmless(function: Any) -> bool:
    if function.__class__.__name__ == "method-wrapper":  # __get__ or __set__ of a property
        return getattr(function.__self__, "__name__", None) not in _VALUES
    return getattr(function, "__name__", None) in _ALLOWED


class _Absent:
    _cairn_name: str
    _cairn_class: Type[torch.Tensor]

    @classmethod
    def __torch_function__(cls, function: Any, types: Sequence[type], args: Sequence[Any] = (),
                           kwargs: Optional[Mapping[str, Any]] = None) -> Any:
        if _is_harmless(function):
            return super().__torch_function__(function, types, args, kwargs or {})  # type: ignore[misc]
        raise Invalid(f"{_first_name(args, kwargs)} is not here: in stage 3 a parameter is, inside its module's "
                      "forward and backward. For a state dict or a checkpoint take m.state_dict(), which is read from "
                      "the servers; elsewhere use it within `with m.gathered(name or module):`; to change its values: "
                      "m.write({name: values}). If this is torch.compile: compile first, then attach")

    def __repr__(self) -> str:
        return f"Parameter {self._cairn_name} of {list(self.shape)}, which is not here (stage 3)"  # type: ignore


def _first_name(args: Any, kwargs: Optional[Mapping[str, Any]]) -> str:
    """Of an absent parameter among arguments, which may be lists."""
    left = list(args) + list((kwargs or {}).values())
    for one in left:
        if isinstance(one, _Absent):
            return one._cairn_name
        if isinstance(one, (list, tuple)):
            left.extend(one)
    return "a parameter"


@functools.lru_cache(maxsize=None)
def _absent_class(present: type) -> type:
    return type("Absent" + present.__name__, (_Absent, present), {})


def hide(parameter: torch.Tensor, name: str) -> None:
    """The caller frees what its data was."""
    shape, present = parameter.shape, type(parameter)
    one = torch.full((1,), float("nan"), dtype=parameter.dtype, device=parameter.device)
    parameter.data = one.as_strided(shape, (0,) * len(shape))
    parameter._cairn_name, parameter._cairn_class = name, present  # type: ignore[attr-defined]
    parameter.__class__ = _absent_class(present)


def show(parameter: torch.Tensor, data: torch.Tensor) -> None:
    if isinstance(parameter, _Absent):
        parameter.__class__ = parameter._cairn_class
        del parameter._cairn_name, parameter._cairn_class
    parameter.data = data


# ==== units that are lent ====

# Parameters of stage 3 where the shards of this host published them, in its memory or on a card: nothing is copied,
# and nobody may write there.
#
# The pages are read only for this process, so a write would end it; on a card it would spoil what others read. So a
# parameter that is lent is of a class that refuses what writes to it (the way of _Absent), and so is what shows its
# memory: .data, .detach(), views without a gradient. What autograd saves is plain, and only read.
#
# The memory is on loan as long as any tensor shows it, and its bytes are those of the version until two updates later.
# A round's version stays until the round is over (cairn.h), so whoever computes within a round reads the right bytes,
# or is told that the round is void (EpochChanged) and nothing was applied. So units are lent inside rounds only,
# tensors that outlive the version refuse to be used, and a backward pass of an earlier version's graph is refused by
# _window.py.

_DTYPES = {"f32": torch.float32, "bf16": torch.bfloat16}
_PAUSE_MAX = 64  # versions
_IN_PLACE = frozenset("""__setitem__ __iadd__ __isub__ __imul__ __itruediv__ __ifloordiv__ __imod__ __ipow__ __iand__
    __ior__ __ixor__ __ilshift__ __irshift__ __idiv__""".split())
_GIVES_AWAY = frozenset("storage untyped_storage _storage _typed_storage __dlpack__".split())  # its memory
_NO_WRITE = frozenset(["requires_grad_", "detach_", "rename_", "retain_grad"])  # changes what it is, not its values


class Loan:
    """A unit's tensors at a version, lent. It ends when the last tensor over it is gone."""

    def __init__(self, mapped: Mapped, is_shared: bool):
        self._mapped, self.is_shared, self._is_ended = mapped, is_shared, False
        self._memory: Dict[str, OnLoan] = {name: OnLoan(view, False) for name, view in mapped.views.items()}
        self.nbytes = sum(nbytes for _, nbytes in mapped.places.values())

    @property
    def operation(self) -> Operation:
        return self._mapped._operation

    def wait(self, timeout: float) -> None:
        self._mapped.wait(timeout)

    def tensor(self, name: str, wire: str) -> torch.Tensor:
        """Plain, and keeps the loan."""
        (address, nbytes), shape = self._mapped.places[name], self._mapped.shapes[name]
        device = torch.device("cpu") if self._mapped.card is None else torch.device("cuda", self._mapped.card)
        if nbytes == 0:
            return torch.empty(shape, dtype=_DTYPES[wire], device=device)
        if self._mapped.card is not None:
            return _transfer.tensor_at(address, nbytes, device, keeps=self).view(_DTYPES[wire]).view(shape)
        array = (ctypes.c_char * nbytes).from_address(address)
        array._loan = self  # the storage has the array, and so this
        return torch.frombuffer(array, dtype=_DTYPES[wire]).view(shape)

    @property
    def is_over(self) -> bool:
        return self._is_ended or self._mapped._job.closed

    def end(self) -> None:
        """Of the version: what still shows it is not to be used any more."""
        self._is_ended = True

    def __del__(self) -> None:
        try:
            self._memory.clear()
            card = self._mapped.card
            self._mapped.close(None if card is None else stream_now(torch.device("cuda", card)))
        except Exception:  # noqa: BLE001 - the job is closed, and the loan with it
            pass


class Lender:
    """Lends `units`; after one that could not be shared it tries fewer versions, unless `always`."""

    def __init__(self, units: FrozenSet[Unit], always: bool):
        self._units, self._always = units, always
        self._pause = self._left = 0  # versions

    def next_version(self) -> None:
        self._left = max(0, self._left - 1)

    def lend(self, job: Job, version: Version, unit: Unit) -> Optional[Loan]:
        """Begun, to be waited for. None: it is to be copied. Not `is_shared`: a shard of another host has a part, and
        it is gathered in the library's memory instead."""
        device = unit.slots[0].device
        if unit not in self._units or self._left > 0 or not job._session._takes(device):
            return None
        before = job.stats().maps_lent
        mapped = job.map(version, unit.name, device.index if device.type == "cuda" else None)
        loan = Loan(mapped, job.stats().maps_lent > before)
        self._pause = 0 if loan.is_shared or self._always else min(_PAUSE_MAX, 2 * self._pause + 1)
        self._left = self._pause
        return loan


def is_lendable(module: nn.Module) -> bool:
    """Whether nothing in it is known to write to its parameters, or to see through the class that forbids it."""
    for one in module.modules():
        if getattr(one, "max_norm", None) is not None:  # an embedding that renormalizes its weight in forward
            return False
        if is_compiled(one):
            return False
    return True


_PASSES = frozenset(one.__code__ for one in (nn.Module._call_impl, torch.autograd.backward, torch.autograd.grad))


def is_pass_under_way(but_here: bool = False) -> bool:
    """Some thread, `but_here`: another than this one, is within a module's forward or a backward pass: that may read
    what is lent."""
    for thread, frame in sys._current_frames().items():
        while frame is not None and not (but_here and thread == threading.get_ident()):
            if frame.f_code in _PASSES:
                return True
            frame = frame.f_back  # type: ignore[assignment]
    return False


class _Lent:
    _cairn_loan: Loan
    _cairn_range: Tuple[int, int]  # addresses

    @classmethod
    def __torch_function__(cls, function: Any, types: Sequence[type], args: Sequence[Any] = (),
                           kwargs: Optional[Mapping[str, Any]] = None) -> Any:
        kwargs = kwargs or {}
        name = getattr(function, "__name__", "")
        lent = _first(list(args) + list(kwargs.values()))
        if lent is not None and lent._cairn_loan.is_over and name != "__set__":
            raise Invalid("a tensor that was taken from a parameter in stage 3 is of a version that has ended: take it "
                          "anew, or a copy (.clone()) of what is to be kept")
        if name in _GIVES_AWAY and lent is not None:
            raise Invalid(f"{name} of a parameter that is lent, read only, by the shards of this host: take it of a "
                          "copy (.clone()). If this is torch.compile: compile first, then attach")
        if name.endswith("_") and _writes(name, args, kwargs) or _writes_beneath(args, kwargs):
            raise Invalid(f"{name} would write to a parameter that is lent, read only, by the shards of this host: "
                          "change it by m.write({name: values}); for one of this worker's alone, which ends with the "
                          "step, take `with m.gathered(name):`, or attach(…, mapped_parameters=False)")
        result = torch._C._disabled_torch_function_impl(function, types, args, kwargs)  # type: ignore[attr-defined]
        return result if lent is None else _guarded(result, name, lent)


    def __deepcopy__(self, memo: Dict[int, Any]) -> torch.Tensor:
        return memo.setdefault(id(self), self._copied())

    def __reduce_ex__(self, protocol: Any) -> Any:
        return self._copied().__reduce_ex__(protocol)

    def _copied(self) -> Any:
        """Of the class that it has when it is not lent."""
        copy = self.detach().clone()  # type: ignore[attr-defined]
        return nn.Parameter(copy, self.requires_grad) if isinstance(self, nn.Parameter) else copy


class _LentTensor(_Lent, torch.Tensor):
    """What shows the memory of a parameter that is lent."""


def _first(values: List[Any]) -> Optional[_Lent]:
    for one in values:
        if isinstance(one, _Lent):
            return one
        if isinstance(one, (list, tuple)):
            inner = _first(list(one))
            if inner is not None:
                return inner
    return None


def _writes(name: str, args: Sequence[Any], kwargs: Mapping[str, Any]) -> bool:
    if name.startswith("__") and name not in _IN_PLACE or name in _NO_WRITE:
        return False
    return _first(list(args[:1]) + [kwargs.get("input"), kwargs.get("tensor"), kwargs.get("self")]) is not None


def _writes_beneath(args: Sequence[Any], kwargs: Mapping[str, Any]) -> bool:
    """Functions of torch.nn.functional that are told to by an option; nobody is asked while they run."""
    written = [kwargs.get("out")]
    if kwargs.get("inplace") or kwargs.get("max_norm") is not None:
        written += [*args, *kwargs.values()]
    return _first(written) is not None


def _guarded(result: Any, name: str, lent: _Lent) -> Any:
    """Views are lent as it is, but for those that autograd protects, because they have a gradient."""
    if isinstance(result, torch.Tensor):
        low, high = lent._cairn_range
        is_protected = result.requires_grad and torch.is_grad_enabled()
        if result.layout != torch.strided:  # a sparse gradient, which has no memory of one piece
            return result
        if isinstance(result, _Lent) or is_protected or not low <= result.data_ptr() < high:
            return result
        return _mark(result.as_subclass(_LentTensor), lent._cairn_loan, lent._cairn_range)
    if isinstance(result, (list, tuple)) and type(result) in (list, tuple):
        return type(result)(_guarded(one, name, lent) for one in result)
    if name in ("numpy", "__array__") and hasattr(result, "setflags"):
        result.setflags(write=False)
    return result


def _mark(tensor: Any, loan: Loan, addresses: Tuple[int, int]) -> Any:
    tensor._cairn_loan, tensor._cairn_range = loan, addresses
    return tensor


@functools.lru_cache(maxsize=None)
def _lent_class(present: type) -> type:
    return type("Lent" + present.__name__, (_Lent, present), {})


def come(parameter: torch.Tensor, data: torch.Tensor, loan: Loan) -> None:
    """The parameter, which is not lent, shows this memory until `leave`."""
    parameter.data = data
    low = data.data_ptr()
    _mark(parameter, loan, (low, low + data.numel() * data.element_size()))
    parameter.__class__ = _lent_class(type(parameter))


def leave(parameter: torch.Tensor) -> None:
    """What its class was; the caller gives it other data."""
    if isinstance(parameter, _Lent):
        parameter.__class__ = type(parameter).__mro__[2]
        del parameter._cairn_loan, parameter._cairn_range


# ==== the window ====



class Memory(NamedTuple):
    """Bytes of parameters that were gathered, by count. `peak_bytes` <= `window` * `largest_unit_bytes`, unless more
    units than that are in use at once (branches); `root_bytes` stay gathered and count apart."""

    gathered_bytes: int
    peak_bytes: int
    largest_unit_bytes: int
    window: int
    root_bytes: int
    gradient_bytes: int = 0  # shared memory that gradients are pushed from: stage 3: of `window` units, else of all
    lent_bytes: int = 0  # of parameters where shards of this host published them, at the newest version: not gathered
    gradient_overflow_bytes: int = 0  # gradients on their way that had no room there, now
    gradient_peak_bytes: int = 0  # most of both


class _Cell:
    """A slot's memory: out, coming or in; `full`, or what is lent."""

    def __init__(self, slot: Slot):
        self.slot, self.landing = slot, None  # type: Slot, Union[Landing, Loan, None]
        data = slot.parameter.data
        own = data.is_contiguous() and data.storage_offset() == 0 and _storage_bytes(data) == _bytes(data)
        if slot.bare:
            self.full = torch.empty(data.shape, dtype=data.dtype)  # untouched, and let go at once
        else:
            self.full = data if own else data.clone(memory_format=torch.contiguous_format)
        self.bytes = _bytes(self.full)
        self.staged = 0  # bytes of what it is landing through
        self.is_in, self.is_lent = True, False
        self.was_held = False  # by name, and not let go since
        self.mark: Optional[torch.Tensor] = None  # the bits of what was fetched into its own memory

    @property
    def is_pinned(self) -> bool:
        return any(unit.module is None for unit in self.slot.units)

    def give_up(self) -> int:
        """The bytes that are free now."""
        was_lent, self.is_in, self.is_lent, self.mark = self.is_lent, False, False, None
        if was_lent:
            leave(self.slot.parameter)
        hide(self.slot.parameter, self.slot.name)
        if not was_lent:
            _resize_storage(self.full, 0)
        return 0 if was_lent else self.bytes

    def begin(self, start: Callable[[Slot, torch.Tensor], Landing]) -> None:
        _resize_storage(self.full, self.bytes)
        try:
            self.landing = start(self.slot, self.full)
        except BaseException:
            _resize_storage(self.full, 0)
            raise
        self.staged = self.landing.staged_bytes

    def finish(self) -> None:
        landed, self.landing, self.staged = self.landing, None, 0
        if isinstance(landed, Loan):
            there = landed.tensor(self.slot.name, self.slot.wire)
            show(self.slot.parameter, there)
            come(self.slot.parameter, there, landed)
            self.is_lent = True
        else:
            show(self.slot.parameter, self.full)
            self.mark = bits(self.full) if self.bytes else None
        self.is_in = True


def _bytes(tensor: torch.Tensor) -> int:
    return tensor.numel() * tensor.element_size()


def _storage_bytes(tensor: torch.Tensor) -> int:
    if hasattr(tensor, "untyped_storage"):
        return tensor.untyped_storage().nbytes()
    return tensor.storage().nbytes()


def _resize_storage(tensor: torch.Tensor, nbytes: int) -> None:
    if hasattr(tensor, "untyped_storage"):
        tensor.untyped_storage().resize_(nbytes)
    else:  # torch 1.13
        tensor.storage().resize_(nbytes // tensor.element_size())


class _Call:
    """One forward pass through a unit: when it began and ended, by the window's clock. For the timeline: since when it
    is used, forward and then backward, and when the last of its gradients was complete. `age` of the parameters, and
    `own`: those that were not lent, whose memory autograd has noted."""

    def __init__(self, unit: Unit, began: int, age: int):
        self.unit, self.began, self.ended, self.age = unit, began, began, age
        self.own: FrozenSet[Slot] = frozenset()
        self.since = time.monotonic()
        self.last_gradient: Optional[float] = None


class Window:
    """`start` begins a fetch of the version that the model computes with, `lend` a loan of a unit at it, or gives the
    one that there is (None: not now); `gone` makes the error to raise when that version is not kept any more, or the
    job was restored; `timeline` is told what is fetched and used when, if there is one."""

    def __init__(self, units: List[Unit], size: int, start: Callable[[Slot, torch.Tensor], Landing],
                 lend: Callable[[Unit, Optional[Loan]], Optional[Loan]], gone: Callable[[CairnError], CairnError],
                 timeout: Callable[[], float], timeline: Callable[[], Optional[Timeline]]):
        self._units, self._size, self._start, self._gone, self._timeout = units, size, start, gone, timeout
        self._timeline, self._lend = timeline, lend
        self._loans: Dict[Unit, Loan] = {}
        self._age = 0  # one more with every version
        self._cells: Dict[Slot, _Cell] = {}
        self._held: List[Unit] = []  # gathered or coming, in the order of it
        self._in_forward: List[_Call] = []
        self._in_backward: List[_Call] = []
        self._clock = 0
        self._order, self._seen = list(units), []  # type: List[Unit], List[Unit]
        self._now = self._peak = 0
        self._wrote: Dict[Slot, torch.Tensor] = {}  # whether a pass wrote to it
        for unit in units:
            for slot in unit.slots:
                if slot not in self._cells:
                    self._cells[slot] = _Cell(slot)
        for cell in self._cells.values():
            cell.give_up()
        self._largest = max((self._unit_bytes(unit) for unit in units), default=0)
        self.hooks = [hook for unit in units for hook in self._hook(unit)]

    def memory(self, root_bytes: int) -> Memory:
        lent = sum(loan.nbytes for loan in self._loans.values() if loan.is_shared)
        return Memory(self._now, self._peak, self._largest, self._size, root_bytes, lent_bytes=lent)

    def shape(self, slot: Slot) -> torch.Size:
        return self._cells[slot].full.shape

    def __contains__(self, slot: Slot) -> bool:
        return slot in self._cells

    def _unit_bytes(self, unit: Unit) -> int:
        return sum(self._cells[slot].bytes for slot in unit.slots)

    # ---- gather and release ----

    def _count(self, nbytes: int) -> None:
        self._now += nbytes
        self._peak = max(self._peak, self._now)

    def _loan(self, slot: Slot) -> Optional[Loan]:
        unit = slot.units[0]
        had = self._loans.get(unit)
        loan = self._lend(unit, had)
        if loan is not None and loan is not had:
            self._loans[unit] = loan
            self._count(0 if loan.is_shared else loan.nbytes)
        return loan

    @property
    def lends(self) -> bool:
        return bool(self._loans)

    def end_loans(self) -> None:
        """The version is over, or the job: nothing is lent any more."""
        self._age += 1
        for cell in self._cells.values():
            if cell.is_lent:
                cell.give_up()
            if isinstance(cell.landing, Loan):
                cell.landing = None
        for loan in self._loans.values():
            self._now -= 0 if loan.is_shared else loan.nbytes
            loan.end()
        self._loans = {}

    def _ask(self, cell: _Cell, own: bool) -> None:
        """A lent one's memory may be noted by autograd, and stays; where its own one was, that has to be there."""
        if own and cell.is_lent:
            cell.give_up()
        cell.landing = None if own else self._loan(cell.slot)
        if cell.landing is None:
            cell.begin(self._start)
            self._count(cell.bytes + cell.staged)

    def _begin(self, unit: Unit, own: FrozenSet[Slot] = frozenset()) -> None:
        """Asks for what of the unit is out; `own`: what may not be lent."""
        if unit not in self._held:
            self._make_room(unit)
            self._held.append(unit)
        began, coming = time.monotonic(), []
        for slot in unit.slots:
            cell = self._cells[slot]
            if slot in own and isinstance(cell.landing, Loan):
                cell.landing = None
            if cell.landing is None and (not cell.is_in or (cell.is_lent and slot in own)):
                self._ask(cell, slot in own)
                coming.append(cell.landing.operation)  # type: ignore[union-attr]
        timeline = self._timeline()
        if timeline is not None and coming:
            timeline.fetching(unit.name, began, coming)

    def _make_room(self, unit: Unit) -> None:
        busy = [call.unit for call in self._in_forward + self._in_backward]
        for idle in [one for one in self._held if one not in busy and one is not unit]:
            if len(self._held) < self._size:
                return
            self.release(idle)

    def gather(self, unit: Unit, own: FrozenSet[Slot] = frozenset()) -> None:
        try:
            self._begin(unit, own)
            self._land([cell for cell in map(self._cells.__getitem__, unit.slots) if cell.landing is not None])
        except (VersionGone, Stale, RolledBack) as error:
            gone = self._gone(error)
            if gone is error:
                raise
            raise gone from error

    def _land(self, coming: List[_Cell]) -> None:
        with torch.no_grad():
            wait_all([cell.landing for cell in coming if cell.landing is not None], self._timeout())
        for cell in coming:
            self._now -= cell.staged
            cell.finish()

    def _free(self, cell: _Cell) -> None:
        if cell.landing is not None:  # its memory is on loan until it has landed, or failed to
            try:
                cell.landing.wait(self._timeout())
            except Timeout:
                raise
            except CairnError:
                pass
            self._now -= cell.staged
            cell.finish()
        if cell.is_in:
            self._look(cell)
            self._now -= cell.give_up()

    def _look(self, cell: _Cell) -> None:
        """Whether a pass wrote to it; what is gathered by name may be written to."""
        if cell.mark is not None and not cell.was_held:
            wrote = (cell.mark != bits(cell.slot.parameter.data)).any()
            self._wrote[cell.slot] = wrote if cell.slot not in self._wrote else self._wrote[cell.slot] | wrote
        cell.was_held = False

    def written(self) -> List[Slot]:
        """In passes since this was last asked."""
        wrote, self._wrote = self._wrote, {}
        return [slot for slot, one in wrote.items() if one]

    def release(self, unit: Unit) -> None:
        if unit not in self._held:
            return
        self._held.remove(unit)
        for slot in unit.slots:
            if not any(other in self._held for other in slot.units):
                self._free(self._cells[slot])

    def release_all(self) -> None:
        """No forward or backward pass is under way, whatever an exception has left behind."""
        self._in_forward = [call for call in self._in_forward if call.unit.module is None]
        for call in self._in_backward:
            self._used_in_backward(call)
        self._in_backward = []
        for unit in [one for one in self._held if one.module is not None]:
            self.release(unit)

    def on_accumulated(self, slot: Slot) -> None:
        """The slot's gradient is complete."""
        for call in self._in_backward:
            if slot in call.unit.slots:
                call.last_gradient = time.monotonic()
        if slot in self._cells and not self._cells[slot].is_pinned:
            self._free(self._cells[slot])

    def hold(self, slots: List[Slot]) -> Unit:
        """Gathers some slots beside the window, until let_go; they may be written to."""
        unit = Unit("gathered", None, [slot for slot in slots if slot in self._cells])
        for slot in unit.slots:
            slot.units.append(unit)
            self._cells[slot].was_held = True
        self._held.append(unit)
        self._in_forward.append(_Call(unit, self._clock, self._age))
        self.gather(unit, frozenset(unit.slots))
        return unit

    def let_go(self, unit: Unit) -> None:
        self._in_forward = [call for call in self._in_forward if call.unit is not unit]
        self.release(unit)
        for slot in unit.slots:
            slot.units.remove(unit)

    # ---- when ----

    def _prefetch(self, unit: Unit, order: List[Unit]) -> None:
        """The units after this one in `order`, as far as the window goes."""
        if unit not in order:
            return
        at = order.index(unit)
        for ahead in order[at + 1:at + self._size]:
            if len(self._held) >= self._size and ahead not in self._held:
                return
            self._begin(ahead)

    def _hook(self, unit: Unit) -> Iterator[Any]:
        module = unit.module
        assert isinstance(module, nn.Module)
        yield before_forward(module, lambda *_: self._before_forward(unit))
        yield module.register_forward_hook(Outside(lambda _module, _args, out: self._after_forward(unit, out)))

    def begin_pass(self) -> None:
        """A forward pass of the whole model begins: the order of the last one is what is prefetched by."""
        if self._seen:
            self._order = self._seen + [unit for unit in self._units if unit not in self._seen]
        self._seen = []

    def _before_forward(self, unit: Unit) -> None:
        self._clock += 1
        self._in_forward.append(_Call(unit, self._clock, self._age))
        if unit not in self._seen:
            self._seen.append(unit)
        self.gather(unit)
        call = self._in_forward[-1]
        call.since = time.monotonic()
        call.own = frozenset(slot for slot in unit.slots if not self._cells[slot].is_lent)
        if not self._in_backward:
            self._prefetch(unit, self._order)

    def _after_forward(self, unit: Unit, out: Any) -> None:
        self._clock += 1
        call = next((one for one in reversed(self._in_forward) if one.unit is unit), None)
        if call is None:
            return
        self._in_forward.remove(call)
        call.ended = self._clock
        self._used("forward", call, time.monotonic())
        if torch.is_grad_enabled():
            for tensor in _tensors(out):
                if tensor.requires_grad:
                    tensor.register_hook(lambda gradient, call=call: self._before_backward(call))
        if not any(one.unit is unit for one in self._in_forward + self._in_backward):
            self.release(unit)

    def _before_backward(self, call: _Call) -> None:
        if call.age != self._age:  # its parameters are not what autograd noted
            raise self._gone(Stale(f"the forward pass of {call.unit.name} was at an earlier version"))
        for later in [one for one in self._in_backward if one.began > call.ended]:
            self._in_backward.remove(later)
            self._used_in_backward(later)
            if not any(one.unit is later.unit for one in self._in_forward + self._in_backward):
                self.release(later.unit)
        is_first = call not in self._in_backward
        if is_first:
            self._in_backward.append(call)
        self.gather(call.unit, call.own)
        if is_first:
            call.since, call.last_gradient = time.monotonic(), None
        self._prefetch(call.unit, self._order[::-1])

    def _used(self, phase: str, call: _Call, until: float) -> None:
        timeline = self._timeline()
        if timeline is not None and call.unit.module is not None:
            timeline.used(phase, call.unit.name, call.since, until)

    def _used_in_backward(self, call: _Call) -> None:
        self._used("backward", call, time.monotonic() if call.last_gradient is None else call.last_gradient)


def _tensors(value: Any) -> Iterator[torch.Tensor]:
    if isinstance(value, torch.Tensor):
        yield value
    elif isinstance(value, dict):
        for one in value.values():
            yield from _tensors(one)
    elif isinstance(value, (list, tuple)):
        for one in value:
            yield from _tensors(one)
    elif hasattr(value, "__dataclass_fields__"):
        for name in value.__dataclass_fields__:
            yield from _tensors(getattr(value, name))
