"""What a trainer is warned of, or refused, since the servers do it now, or do it in another way than torch."""

from __future__ import annotations

import functools
import sys
import threading
import types
import warnings
import weakref
from typing import Any, Callable, Dict, Iterable, Iterator, List, Mapping, Sequence, Set

import torch
from torch import nn

from . import _c, _log
from ._model import Slot
from .errors import Invalid
from .optim import lr_is_zero
from .records import Result
from .spec import Group


# ==== what is the servers' now ====

# What a trainer was used to do by itself, and what is the servers' now: it is refused or warned of, where torch lets
# us see it.


class _RefuseLoading:
    """A hook of the modules that are attached; of copies of them, pickled ones too, it is one that does nothing."""

    def __init__(self, modules: Iterable[nn.Module] = (), instead: str = ""):
        self._ours, self._instead = weakref.WeakSet(modules), instead

    def __reduce__(self) -> Any:
        return _RefuseLoading, ()

    def __call__(self, module: nn.Module, *_: Any) -> None:
        if module in self._ours:
            raise Invalid("load_state_dict into a model that is attached: its parameters are the servers', and come "
                          f"from there, so that what is loaded here would soon be gone. {self._instead}")


def refuse_loading(model: nn.Module, instead: str) -> List[Any]:
    """model.load_state_dict() raises, of its modules too, until these handles are removed."""
    refuse = _RefuseLoading(model.modules(), instead)
    return [module._register_load_state_dict_pre_hook(refuse, with_module=True) for module in model.modules()
            if not isinstance(module, torch.jit.ScriptModule)]  # those take none


# ---- torch.nn.utils.clip_grad_norm_ ----

_CLIPS = ("clip_grad_norm_", "clip_grad_value_", "clip_grads_with_norm_")  # the last one of torch 2.6


class Clipping:
    """Sees that torch is to clip gradients of ours, which are at the servers: it finds none, and that is said once."""

    def __init__(self, slots: Iterable[Slot], clip_norm: Callable[[], float]):
        self._parameters, self._clip_norm = {id(slot.parameter) for slot in slots if slot.trained}, clip_norm
        self._is_told = False
        with _lock:
            _clippings.add(self)
            _put_into_modules(_told)

    def remove(self) -> None:
        """With the last one torch's functions are where they were."""
        with _lock:
            _clippings.discard(self)
            if not _clippings:
                _put_into_modules({told: clip for clip, told in _told.items()})

    def saw(self, name: str, parameters: Iterable[torch.Tensor]) -> None:
        ours = [one for one in parameters if id(one) in self._parameters]
        if self._is_told or not ours or any(one.grad is not None for one in ours):
            return
        self._is_told, clip_norm = True, self._clip_norm()
        if name == "clip_grad_value_":
            warnings.warn("torch.nn.utils.clip_grad_value_ clips nothing of a model that is attached: its gradients "
                          "are at the servers, which clip by the norm of all of the job's (attach(…, clip_norm=…), "
                          f"here {clip_norm or 'none'}), not by values. A hook clips the values of each backward pass "
                          "of each worker: for p in model.parameters(): p.register_hook(lambda g: g.clamp(-value, "
                          "value)). Leave clip_grad_value_ out", stacklevel=3)
            return
        warnings.warn(f"torch.nn.utils.{name} clips nothing of a model that is attached: its gradients are at the "
                      "servers, which clip by the norm of all of the job's: give attach(…, clip_norm=…), here "
                      f"{clip_norm or 'none'}; m.step().grad_norm is the norm. Leave {name} out", stacklevel=3)


def _telling(clip: Callable[..., Any]) -> Callable[..., Any]:
    """Torch's function, which tells those who are attached what it is given."""
    @functools.wraps(clip)
    def told(parameters: Any, *options: Any, **named: Any) -> Any:
        if isinstance(parameters, Iterator):  # it goes through them once
            listed = list(parameters)
            parameters, seen = (one for one in listed), listed
        else:
            seen = [parameters] if isinstance(parameters, torch.Tensor) else parameters
        for clipping in list(_clippings):
            clipping.saw(clip.__name__, seen)
        if clip.__name__ == "clip_grad_value_" and all(one.grad is None for one in seen):
            return None  # torch 2.15 fails where there is none
        return clip(parameters, *options, **named)
    return told


_lock = threading.Lock()  # of what modules have
_clippings: "weakref.WeakSet[Clipping]" = weakref.WeakSet()
_told = {clip: _telling(clip) for clip in (getattr(nn.utils.clip_grad, name, None) for name in _CLIPS) if clip}


def _put_into_modules(by: Dict[Callable[..., Any], Callable[..., Any]]) -> None:
    """Every global of a loaded module, whatever it is called there (from torch.nn.utils import clip_grad_norm_)."""
    for module in list(sys.modules.values()):
        if issubclass(type(module), types.ModuleType):
            there = object.__getattribute__(module, "__dict__")  # one that is loaded when it is asked stays unasked
            for name, value in list(there.items()):
                if type(value) is types.FunctionType and value in by:
                    there[name] = by[value]


# ==== groups that do not learn ====

# Groups that do not learn: their learning rate is 0, by mistake or because a schedule is over. Said once.

STEPS = 100  # applied, one after the other


class Stillness:
    """Told of every step; warns of a group when it has been at 0 for STEPS of them."""

    def __init__(self) -> None:
        self._steps: Dict[str, int] = {}  # at 0, by group
        self._told: Set[str] = set()

    def saw(self, result: Result, groups: Sequence[Group], rates: Mapping[str, float]) -> None:
        """`groups`: as this worker was given them, or has amended them, `rates`: what it gave for driven ones; of one
        alone the result knows better."""
        if not result.applied:
            return
        still = {group.name for group in groups if self._is_still(group, result, rates, len(groups) == 1)}
        self._steps = {name: self._steps.get(name, 0) + 1 for name in still}
        self._tell(group for group in groups if self._steps.get(group.name, 0) >= STEPS)

    @staticmethod
    def _is_still(group: Group, result: Result, rates: Mapping[str, float], is_alone: bool) -> bool:
        if is_alone:
            return result.lr == 0
        is_driven = group.schedule.kind == _c.SCHEDULE_DRIVEN
        return rates.get(group.name) == 0 if is_driven else lr_is_zero(group, result.step - 1)

    def _tell(self, groups: Iterable[Group]) -> None:
        for group in groups:
            if group.name not in self._told:
                self._told.add(group.name)
                if group.schedule.kind == _c.SCHEDULE_DRIVEN:
                    warnings.warn(f"group {group.name!r} has not changed for {STEPS} steps, since the lr that was "
                                  "given for it is 0: look at its scheduler", stacklevel=4)
                    continue
                total = group.schedule.total_steps
                why = ("its lr is 0" if group.lr == 0 else
                       "its schedule is at 0" + (f" (total_steps {total})" if total > 0 else ""))
                warnings.warn(f"group {group.name!r} has not changed for {STEPS} steps, since {why}: give another lr "
                              f"or schedule by m.amend({{{group.name!r}: dict(lr=…, schedule=…)}})", stacklevel=4)


# ==== parameters without a gradient ====

# Parameters without a gradient, which torch leaves alone and the servers take for a gradient of zeros, unless the job
# has missing_gradients="leave". Said once.

NAMED = 5


def _is_moved_by_zeros(group: Group) -> bool:
    """SGD alone, without momentum and decay, does the same either way."""
    return group.optimizer != "sgd" or group.momentum != 0 or group.weight_decay != 0


class Untouched:
    """Told of every step of a model."""

    def __init__(self, job: str, slots: Iterable[Slot], group_of: Dict[str, str], groups: Sequence[Group],
                 is_said: bool):
        """`is_said`: the trainer has chosen what happens to them."""
        moved = {group.name for group in groups if _is_moved_by_zeros(group)}
        self._job = job
        self._watched = [] if is_said else [slot for slot in slots
                                            if slot.trained and group_of.get(slot.name, "default") in moved]

    def saw(self, result: Result, passes: int, given: Set[Slot]) -> None:
        """A step is over, of so many backward passes of this worker, which had gradients of these. Without any the
        other workers may have had all of them; where the norm is 0 they had none."""
        if not result.applied or (passes == 0 and result.grad_norm != 0):
            return
        names = [slot.name for slot in self._watched if slot not in given and slot.parameter.requires_grad]
        if names:
            self._watched = []
            _log.without_gradient(self._job, result.step, names, NAMED)
