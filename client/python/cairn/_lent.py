"""Parameters of stage 3 where the shards of this host published them, in its memory or on a card: nothing is copied,
and nobody may write there.

The pages are read only for this process, so a write would end it; on a card it would spoil what others read. So a
parameter that is lent is of a class that refuses what writes to it (the way of _absent.py), and so is what shows its
memory: .data, .detach(), views without a gradient. What autograd saves is plain, and only read.

The memory is on loan as long as any tensor shows it, and its bytes are those of the version until two updates later. A
round's version stays until the round is over (cairn.h), so whoever computes within a round reads the right bytes, or is
told that the round is void (EpochChanged) and nothing was applied. So units are lent inside rounds only, tensors that
outlive the version refuse to be used, and a backward pass of an earlier version's graph is refused by _window.py.
"""

from __future__ import annotations

import ctypes
import functools
import sys
import threading
from typing import Any, Dict, FrozenSet, List, Mapping, Optional, Sequence, Tuple

import torch
from torch import nn

from . import _cuda
from .errors import Invalid
from .memory import Memory, stream_now
from ._model import Unit
from ._wrapped import is_compiled
from .job import Job
from .operation import Mapped, Operation
from .spec import Version

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
        self._memory: Dict[str, Memory] = {name: Memory(view, False) for name, view in mapped.views.items()}
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
            return _cuda.tensor_at(address, nbytes, device, keeps=self).view(_DTYPES[wire]).view(shape)
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
