"""Torch's learning rates, which go to the servers with the commits.

Driver: a torch scheduler stands at the job's step. m.step() moves it on when the round was applied, and so does
whatever brings the job to another step (a restore, an attach in the middle). Followed: the trainer moves its scheduler
itself, or sets lr by hand, and each commit has what the optimizer's param groups then have.
"""

from __future__ import annotations

import copy
import functools
import types
import warnings
import weakref
from collections import deque
from typing import Any, Dict, List, Sequence, Tuple

import torch

from .errors import Invalid, Unsupported

_KEPT = ("betas", "momentum", "weight_decay")  # of a param group: the servers would not hear of a change
_RATES = ("lr", "initial_lr", "max_lr", "min_lr")  # of a param group: a scheduler's own
_BASES = ("LRScheduler", "_LRScheduler", "ReduceLROnPlateau")  # the last one is no LRScheduler in torch 1.13
_PLAIN = frozenset((int, float, str, bool, type(None)))
_PROBED = 12  # steps that a scheduler makes twice before it is taken
_FOLLOW = ("attach with cairn.from_torch(optimizer, schedule=cairn.driven()): then each m.step() goes by the lr that "
           "the optimizer's param groups have, and the scheduler's step() stays in the loop")
_TWICE, _TWICE_EVERY = 64, 16  # steps made twice: the first ones, and each so many-th then, since it takes 0.1 ms
_OTHER_RATES = ("it keeps state outside itself, or draws lots, and after a restore the job would go another way than "
                "torch. Give one that goes by the step alone, or")


def is_scheduler(value: Any) -> bool:
    return any(one.__name__ in _BASES and one.__module__ == "torch.optim.lr_scheduler" for one in type(value).__mro__)


def judge(scheduler: Any, optimizer: Any) -> None:
    """Whether it can be one that drives this optimizer."""
    kind = type(scheduler).__name__
    for one in _parts(scheduler):
        if type(one).__name__ == "ReduceLROnPlateau":
            raise Unsupported(f"ReduceLROnPlateau goes by a metric, and m.step() has none: {_FOLLOW}")
        if is_scheduler(one) and one.optimizer is not optimizer:
            raise Invalid(f"the {kind} is of another optimizer than the one that it is given with: make it of that one "
                          "(an optimizer that was copied or unpickled is another one)")
    first = scheduler
    while not hasattr(first, "last_epoch"):  # a ChainedScheduler, which counts nothing itself
        first = first._schedulers[0]
    if first.last_epoch != 0:
        raise Invalid(f"the {kind} is at step {first.last_epoch} already: give it as it was made, of an optimizer "
                      "that is new, too. It is set to the job's step, and m.step() moves it on")


# ---- a scheduler's state, so that it can be given back ----

def _is_called_object(value: Any) -> bool:
    """An instance with a __call__, as LambdaLR takes it: torch, too, counts its attributes as the scheduler's state."""
    return (callable(value) and hasattr(value, "__dict__") and not isinstance(value, (
        type, types.FunctionType, types.MethodType, functools.partial, weakref.ref, torch.nn.Module)))


def _parts(scheduler: Any) -> List[Any]:
    """It, the schedulers in it, and the objects that these call: all that a step may move, but the optimizer."""
    found: List[Any] = []

    def walk(value: Any) -> None:
        if isinstance(value, dict):
            for one in value.values():
                walk(one)
        elif isinstance(value, (list, tuple, deque)):
            for one in value:
                walk(one)
        elif (is_scheduler(value) or _is_called_object(value)) and not any(value is one for one in found):
            found.append(value)
            walk(vars(value))

    walk(scheduler)
    return found


def _copied(value: Any) -> Any:
    """Containers and tensors are new; all else, which no step changes in its place, is the same."""
    if isinstance(value, torch.Tensor):
        return value.clone()
    if isinstance(value, tuple):
        made = [_copied(one) for one in value]
        return type(value)(*made) if hasattr(value, "_fields") else type(value)(made)
    if not isinstance(value, (dict, list, deque, set)):
        return value
    made_like = copy.copy(value)  # of the same class: a Counter stays one
    if isinstance(value, dict):
        for key, one in value.items():
            dict.__setitem__(made_like, key, _copied(one))
    elif not isinstance(value, set):
        for i, one in enumerate(value):
            made_like[i] = _copied(one)
    return made_like


def _image(value: Any) -> Any:
    """What can be compared with another one, where != of the thing itself could be a tensor."""
    kind = type(value)
    if kind in _PLAIN:
        return value if value == value else "nan"
    if isinstance(value, torch.Tensor):
        return value.tolist()
    if isinstance(value, dict):
        return [(key if type(key) in _PLAIN else kind, _image(one)) for key, one in value.items()]
    if isinstance(value, (list, tuple, deque)):
        return [_image(one) for one in value]
    return kind, id(value)


class _Marked:
    """Where a scheduler, of these parts, stands: to be compared, and to be given back to the same objects."""

    def __init__(self, parts: Sequence[Any], optimizer: Any):
        self._optimizer = optimizer
        self._of = [(part, _copied(vars(part))) for part in parts]
        self._rates = [{key: _copied(options[key]) for key in _RATES if key in options}
                       for options in optimizer.param_groups]
        self._image = self._seen()

    def _seen(self) -> Any:
        return [_image(vars(part)) for part, _ in self._of], _lrs(self._optimizer)

    def is_left(self) -> bool:
        """It stands elsewhere by now."""
        return bool(self._seen() != self._image)

    def give_back(self) -> None:
        for part, state in self._of:
            vars(part).clear()
            vars(part).update(_copied(state))
        for options, rates in zip(self._optimizer.param_groups, self._rates):
            for key, rate in rates.items():
                if isinstance(options.get(key), torch.Tensor) and isinstance(rate, torch.Tensor):
                    options[key].copy_(rate)  # the trainer's own tensor stays the one
                else:
                    options[key] = _copied(rate)


def _lrs(optimizer: Any) -> List[float]:
    return [float(options["lr"]) for options in optimizer.param_groups]


# ---- who gives the rates of a step ----


class Driver:
    """Made by FromTorch, of a scheduler that judge() let pass. `groups`: by name, and the place in the optimizer."""

    def __init__(self, scheduler: Any, groups: Sequence[Tuple[str, int]]):
        self._scheduler, self._groups = scheduler, groups
        self._optimizer = scheduler.optimizer
        self._step, self._is_told = 0, False
        self._parts = _parts(scheduler)
        self._start = self._mark = _Marked(self._parts, self._optimizer)
        self._probe()

    def at(self, step: int) -> Dict[str, float]:
        """The learning rates of the round of that step, by group; the scheduler stands there then. What others did to
        it meanwhile is undone."""
        is_moved = self._mark.is_left()
        if is_moved and not self._is_told:
            self._is_told = True
            warnings.warn(f"scheduler.step() beside m.step(), or an lr or a {self._kind} that was changed: m.step() "
                          "moves the scheduler on with each round that is applied, and what else is done to it is "
                          "undone. Leave that out; for another schedule attach anew, with that. For one that goes on "
                          f"by epochs, or that the trainer moves itself, {_FOLLOW}", stacklevel=4)
        if step < self._step:
            self._step, self._mark, is_moved = 0, self._start, True
        if is_moved:
            self._mark.give_back()
        if self._step < step:
            marked = self._step
            try:
                self._go_to(step) if step > _TWICE and step % _TWICE_EVERY else self._go_twice(step)
            except Unsupported:
                self._step = marked
                self._mark.give_back()  # a step that failed may have moved half of it
                raise
            self._mark = _Marked(self._parts, self._optimizer)
        return {name: float(self._optimizer.param_groups[place]["lr"]) for name, place in self._groups}

    @property
    def _kind(self) -> str:
        return type(self._scheduler).__name__

    def _go_twice(self, step: int) -> None:
        """What draws lots, or keeps state outside itself, may begin so behind the steps that are probed."""
        marked, rates = self._step, []
        for _ in range(2):
            self._mark.give_back()
            self._step = marked
            self._go_to(step)
            rates.append(_lrs(self._optimizer))
        if repr(rates[0]) != repr(rates[1]):
            raise Unsupported(f"at step {step} the {self._kind} gives {rates[0]}, and {rates[1]} when it is set back: "
                              f"{_OTHER_RATES} {_FOLLOW}")

    def _go_to(self, step: int) -> None:
        before = self._others()
        with warnings.catch_warnings():  # torch's, of an order that the servers keep
            warnings.simplefilter("ignore", UserWarning)
            while self._step < step:
                try:
                    self._scheduler.step()
                except Exception as failure:
                    raise Unsupported(f"torch's {self._kind} has no rate for step {self._step + 1} "
                                      f"({type(failure).__name__}{f': {failure}' if str(failure) else ''}): give one "
                                      f"that goes so far, or {_FOLLOW}") from failure
                self._step += 1
        after = self._others()
        changed = [name for name in _KEPT if [_image(one.get(name)) for one in after] !=
                   [_image(one.get(name)) for one in before]]
        if changed:
            for options, others in zip(self._optimizer.param_groups, before):
                options.update(others)
            raise Unsupported(f"the {self._kind} changes {' and '.join(changed)} too, and the servers hear of lr "
                              "alone: give OneCycleLR and CyclicLR cycle_momentum=False; else leave it out of the "
                              f"scheduler, and call m.amend({{group: dict({changed[0]}=…)}}) where it changes")

    def _others(self) -> List[Dict[str, Any]]:
        return [{name: _copied(options[name]) for name in _KEPT if name in options}
                for options in self._optimizer.param_groups]

    def _probe(self) -> None:
        """Whether it gives the same rates when it is set back: after a restore it must, and on every worker."""
        seen = [self._rates_of_first_steps() for _ in range(2)]
        if seen[0] != seen[1] or self._start.is_left():
            raise Unsupported(f"the {self._kind} gives other rates when it is set back to its start: "
                              f"{_OTHER_RATES} {_FOLLOW}")

    def _rates_of_first_steps(self) -> List[str]:
        rates = []
        try:
            for step in range(1, _PROBED + 1):
                self._go_to(step)
                rates.append(repr(_lrs(self._optimizer)))
        except Unsupported as end:
            if end.__cause__ is None:
                raise
            rates.append(str(end))  # m.step() says it if the job comes to that step
        finally:
            self._step = 0
            self._start.give_back()
        return rates


class Followed:
    """Made by FromTorch for schedule=driven(): the trainer moves lr itself, by a scheduler's step() or by hand."""

    def __init__(self, optimizer: Any, groups: Sequence[Tuple[str, int]]):
        self._optimizer, self._groups = optimizer, groups
        self._given: Dict[str, float] = {}

    def at(self, _: int) -> Dict[str, float]:
        """The learning rates that have changed since they were given: m.job.group_lr may give others meanwhile."""
        rates = {name: float(self._optimizer.param_groups[place]["lr"]) for name, place in self._groups}
        changed = {name: lr for name, lr in rates.items() if self._given.get(name) != lr}
        self._given = rates
        return changed
