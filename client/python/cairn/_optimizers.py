"""What a trainer does to torch's optimizers, schedulers and GradScaler, and to `.grad`, beside an attached model. None
of it reaches the servers, so each is said, or refused where training on would be another training; cf. the table in
README.md.
"""

from __future__ import annotations

import copy
import functools
import operator
import sys
import threading
import types
import warnings
import weakref
from collections import deque
from typing import Any, Callable, Container, Dict, Iterable, Iterator, List, Optional, Sequence, Set, Tuple

import torch
from torch import nn
from torch.optim import optimizer as optimizers

from ._model import Slot
from .errors import Invalid, Unsupported
from .optim import FromTorch, is_off, judge_option, number_of


# ==== schedulers of torch ====

# Torch's learning rates, which go to the servers with the commits.
#
# Driver: a torch scheduler stands at the job's step. m.step() moves it on when the round was applied, and so does
# whatever brings the job to another step (a restore, an attach in the middle). Followed: the trainer moves its
# scheduler itself, or sets lr by hand, and each commit has what the optimizer's param groups then have.

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


# ==== torch's optimizers ====

try:
    from torch.amp.grad_scaler import GradScaler
except ImportError:  # before torch 2.3
    from torch.cuda.amp.grad_scaler import GradScaler

_TAKEN = ("AdamW", "Adam", "SGD")
_RUNNING = 16  # backward passes of scaled losses that are remembered: those of threads beside each other
_GRAD = torch.Tensor.grad  # torch's own, which tells nobody


def _package(frame: types.FrameType) -> str:
    return str(frame.f_globals.get("__name__", "")).split(".")[0]


def _warn(text: str) -> None:
    """At the line of the trainer's, not of this package or torch."""
    level, frame = 1, sys._getframe(1)
    while frame.f_back is not None and _package(frame) in ("cairn", "torch"):
        level, frame = level + 1, frame.f_back
    warnings.warn(text, stacklevel=level + 1)


def _is_trainers() -> bool:
    """The first call outside this file is neither torch's nor this package's."""
    frame: Optional[types.FrameType] = sys._getframe(1)
    while frame is not None and frame.f_globals is globals():
        frame = frame.f_back
    return frame is not None and _package(frame) not in ("cairn", "torch")


def grad_of(parameter: torch.Tensor) -> Optional[torch.Tensor]:
    """Its .grad, read by this package."""
    return _GRAD.__get__(parameter)


def clear_grad(parameter: torch.Tensor) -> None:
    _GRAD.__set__(parameter, None)


# ---- the optimizer that was taken over ----

class _Taken:
    """Whether the param groups are as they were taken over, and nothing is in the optimizer that only its own step
    would look at."""

    def __init__(self, taken: FromTorch):
        self._taken = taken
        self._members = [list(options["params"]) for options in taken.optimizer.param_groups]
        self._were = {(name, place): self._options(place) for name, place in taken.places}
        self._told: Set[Any] = set()

    def _options(self, place: int) -> Dict[str, Any]:
        options, kind = self._taken.optimizer.param_groups[place], self._taken.kind
        return {name: number_of(kind, name, options[name]) for name in self._taken.options if name in options}

    def judge(self) -> None:
        kind, optimizer = self._taken.kind, self._taken.optimizer
        members = [options["params"] for options in optimizer.param_groups]
        if list(map(len, members)) != list(map(len, self._members)) or not all(
                all(map(operator.is_, now, was)) for now, was in zip(members, self._members)):
            raise Invalid(f"the torch {kind} has other parameters than it had at attach (add_param_group?): nobody "
                          "would train them. Those of this model that were frozen until now: m.amend(unfreeze_tensors="
                          "{name: group}) by one worker, then m.close() and attach again by all, with an optimizer "
                          "that is new and has them. Others: m.close(), and attach a model that has them")
        for (name, place), were in self._were.items():
            for option, value in optimizer.param_groups[place].items():
                if not is_off(kind, option, value):
                    judge_option(kind, option, value)
            self._judge_group(name, place, were)
        if any(optimizer.state.values()):
            self._tell("state", f"the torch {kind} has moments (load_state_dict, or steps of its own), and nobody "
                       "looks at them: those of the servers count. A job that goes on with saved ones begins by "
                       "cairn.import_checkpoint")
        if any(getattr(optimizer, f"_optimizer_step_{when}_hooks", None) for when in ("pre", "post")):
            self._tell("hooks", f"a hook of the torch {kind}'s step() is never called, since the step is m.step(): "
                       "call it there, before m.step() or after")

    def _judge_group(self, name: str, place: int, were: Dict[str, Any]) -> None:
        for option, value in self._options(place).items():
            if value == were[option] or (option == "lr" and self._taken.driver is not None):
                continue
            often = (", or attach with cairn.from_torch(optimizer, schedule=cairn.driven()): then each m.step() goes "
                     "by the optimizer's lr" if option == "lr" else "")
            self._tell((place, option), f"{option} of param group {place} of the torch {self._taken.kind} went from "
                       f"{were[option]} to {value}, and nobody looks at it: the servers keep what attach was given. "
                       f"Call m.amend({{{name!r}: dict({option}={value})}}) on one worker{often}")

    def _tell(self, what: Any, text: str) -> None:
        if what not in self._told:
            self._told.add(what)
            _warn(text)


# ---- calls ----

class TorchOptimizers:
    """Sees what is called of optimizers that have parameters of ours, and of a GradScaler, and what is done to .grad of
    these parameters, until remove(). `pushed`: how much of the open round is at the servers; None: nothing. `given`:
    whose gradients are in it."""

    def __init__(self, slots: Iterable[Slot], taken: Any, pushed: Callable[[], Any] = lambda: None,
                 given: Callable[[], Container[Slot]] = lambda: ()):
        self._parameters = {id(slot.parameter): slot for slot in slots if slot.trained}
        self._taken = _Taken(taken) if isinstance(taken, FromTorch) else None
        self._pushed, self._given, self._told = pushed, given, set()  # type: ignore[var-annotated]
        self._at_step: Any = None  # what was pushed when an optimizer's step() was called
        self._undo = _see_own_calls(taken.optimizer, self) if self._taken is not None else []
        with _lock:
            _watchers.add(self)
            if not _undo:
                _see_calls()

    def remove(self) -> None:
        """With the last one torch's methods are what they were."""
        for undo in self._undo:
            undo()
        self._undo = []
        with _lock:
            _watchers.discard(self)
            if not _watchers:
                while _undo:
                    _undo.pop()()

    def judge(self) -> None:
        """Of the optimizer that was taken over."""
        if self._taken is not None:
            self._taken.judge()

    def _ours(self, parameters: Iterable[Any]) -> List[Slot]:
        return [self._parameters[id(one)] for one in parameters if id(one) in self._parameters]

    def saw_step(self, optimizer: Any, closure: Any = None) -> None:
        slots = self._ours(one for group in optimizer.param_groups for one in group["params"])
        name = type(optimizer).__name__
        kind = f"torch.optim.{name}.step()"
        changed = next((slot.name for slot in slots if grad_of(slot.parameter) is not None), None)
        if changed is not None:
            raise Invalid(f"{kind} would change {changed} and others here, and not on the servers, whose step is "
                          "m.step(): leave it out")
        if slots and closure is not None and name not in _TAKEN:
            raise Unsupported(f"{kind} is given a closure, to have the loss several times before a step, and the "
                              "servers do not run that: they run AdamW, Adam and SGD, whose step is m.step(). Train "
                              "with one of them, or without Cairn")
        if slots:
            self._at_step = self._pushed()
            self._tell("step", f"{kind} does nothing to a model that is attached: the gradients are at the servers, "
                       "whose step is m.step(); leave it out")

    def saw_zero_grad(self, parameters: Iterable[Any]) -> None:
        """Behind an optimizer's step() it is but left over; else it is to throw gradients away."""
        slots = self._ours(parameters)
        if slots and self._pushed() not in (None, self._at_step):
            raise Invalid(f"zero_grad() takes back no gradient of {slots[0].name} and others: they are at the servers "
                          "since the backward pass. To throw away what this step has so far call m.resume(): the step "
                          "is done again. If they are of the pass of another model (a GAN's): requires_grad_(False) "
                          "around that. And leave zero_grad() out, after m.step() no gradient is left")

    def saw_state_dict(self, optimizer: Any) -> None:
        self._tell("state_dict", f"torch.optim.{type(optimizer).__name__}.state_dict() of a model that is attached has "
                   "no moments: they are at the servers. m.snapshot() saves them, m.state_dict('exp_avg') reads them")

    def saw_grad_read(self, parameter: torch.Tensor) -> None:
        """It is None."""
        slot = self._parameters.get(id(parameter))
        if slot is not None and slot in self._given():
            self._tell("grad", f".grad of {slot.name} is None behind a backward pass, since the gradient went to the "
                       "servers in it: what is done here to gradients before m.step() (a norm, clipping, scaling, "
                       f"noise) finds none. {KEEP_IN_GRAD} For norms: attach(…, clip_norm=…) clips, "
                       "m.step().grad_norm is the norm")

    def saw_grad_cleared(self, parameter: torch.Tensor) -> None:
        slot = self._parameters.get(id(parameter))
        if slot is not None and slot in self._given() and self._pushed() not in (None, self._at_step):
            raise Invalid(f".grad = None takes back no gradient of {slot.name}: it is at the servers since the "
                          "backward pass. To throw away what this step has so far call m.resume(): the step is done "
                          f"again. To leave out some gradients of a step: {KEEP_IN_GRAD}")

    def saw_scale_asked(self, scale: float) -> None:
        self._tell("get_scale", f"get_scale() of a torch GradScaler that is enabled is {scale:g}: a loss that is "
                   "multiplied by it by hand is taken for the loss by the servers, which divide by nothing. "
                   + _INSTEAD_OF_SCALER)

    def saw_scaler(self, name: str, optimizer: Any) -> None:
        if self._ours(one for group in optimizer.param_groups for one in group["params"]):
            raise Invalid(f"GradScaler.{name}() finds no gradients of a model that is attached: they are at the "
                          "servers. " + _INSTEAD_OF_SCALER)

    def _tell(self, what: str, text: str) -> None:
        if what not in self._told:
            self._told.add(what)
            _warn(text)


KEEP_IN_GRAD = ("With the backward passes in `with m.no_sync():` gradients stay in .grad until m.step(), in stages 0 "
                "to 2; parameter.register_hook(…) sees each in all stages.")
_lock = threading.Lock()
_watchers: "weakref.WeakSet[TorchOptimizers]" = weakref.WeakSet()
_undo: List[Callable[[], None]] = []


def _replace(owner: Any, name: str, make: Callable[[Any], Any]) -> Callable[[], None]:
    """The attribute is what is made of it; gives what undoes that."""
    had, was = name in vars(owner), getattr(owner, name)
    made = make(was)
    setattr(owner, name, made)

    def undo() -> None:
        if vars(owner).get(name) is made:  # else somebody has replaced it since, and calls it
            setattr(owner, name, was) if had else delattr(owner, name)
    return undo


def _before(tell: Callable[..., None]) -> Callable[[Any], Any]:
    """Tells those who are attached what a method is given."""
    def make(method: Any) -> Any:
        @functools.wraps(method)
        def told(*given: Any, **named: Any) -> Any:
            tell(*given, **named)
            return method(*given, **named)
        return told
    return make


def _tell_all(call: Callable[[TorchOptimizers], None]) -> None:
    for one in list(_watchers):
        call(one)


def _see_calls() -> None:
    """Of the classes of torch, while anybody is attached."""
    _undo.append(_replace(torch.optim.Optimizer, "zero_grad", _before(lambda optimizer, *_, **__: _tell_all(
        lambda one: one.saw_zero_grad(p for group in optimizer.param_groups for p in group["params"])))))
    _undo.append(_replace(nn.Module, "zero_grad", _before(lambda module, *_, **__: _tell_all(
        lambda one: one.saw_zero_grad(module.parameters())))))
    for scaler in _classes(GradScaler):
        if "scale" in vars(scaler):
            _undo.append(_replace(scaler, "scale", _noting_scale))
        if "get_scale" in vars(scaler):
            _undo.append(_replace(scaler, "get_scale", _telling_scale))
        for name in [name for name in ("unscale_", "step") if name in vars(scaler)]:
            _undo.append(_replace(scaler, name, _before(functools.partial(_saw_scaler, name))))
    _undo.append(_replace(nn.Parameter, "grad", _seen_grad))
    register = getattr(optimizers, "register_optimizer_step_pre_hook", None)  # of torch 2
    if register is not None:
        handle = register(lambda optimizer, given=(), named={}: _tell_all(lambda one: one.saw_step(
            optimizer, named.get("closure", given[1] if len(given) > 1 else None))))
        _undo.append(handle.remove)


def _seen_grad(torchs: Any) -> property:
    """Parameter.grad, which tells those who are attached what a trainer does to it; autograd does not come here."""
    def read(parameter: torch.Tensor) -> Any:
        gradient = torchs.__get__(parameter)
        if gradient is None and _is_trainers():
            _tell_all(lambda one: one.saw_grad_read(parameter))
        return gradient

    def write(parameter: torch.Tensor, gradient: Any) -> None:
        if gradient is None and _is_trainers():
            _tell_all(lambda one: one.saw_grad_cleared(parameter))
        torchs.__set__(parameter, gradient)

    return property(read, write, lambda parameter: write(parameter, None), torchs.__doc__)


def _see_own_calls(optimizer: Any, watcher: TorchOptimizers) -> List[Callable[[], None]]:
    """Of the optimizer that was taken over."""
    me = weakref.ref(watcher)

    def told(saw: Callable[..., None]) -> Callable[..., None]:
        def tell(*given: Any, **named: Any) -> None:
            mine = me()
            if mine is not None:
                saw(mine, *given, **named)
        return tell

    if hasattr(optimizer, "register_state_dict_pre_hook"):  # torch 2.1
        undo = [optimizer.register_state_dict_pre_hook(told(TorchOptimizers.saw_state_dict)).remove]
    else:
        undo = [_replace(optimizer, "state_dict", _before(told(lambda mine: mine.saw_state_dict(optimizer))))]
    if not hasattr(optimizers, "register_optimizer_step_pre_hook"):  # torch 1.13 tells of no step
        undo.append(_replace(optimizer, "step", _before(told(
            lambda mine, closure=None: mine.saw_step(optimizer, closure)))))
        optimizer.step._with_counter = True  # so that a scheduler which is made later takes it as it is
    return undo


# ---- GradScaler ----

_INSTEAD_OF_SCALER = ("Leave scale, unscale_, step and update of the scaler out, give attach(…, loss_scale=65536.0) "
                      "and call m.scale(loss).backward(): the servers divide, skip a round with inf, adapt the scale")
_scaled: Dict[int, float] = {}  # the scale by backward pass, the newest last
_elsewhere: "weakref.WeakSet[Any]" = weakref.WeakSet()  # scalers of optimizers that have nothing of ours


def _classes(of: type) -> Iterator[type]:
    yield of
    for one in of.__subclasses__():
        yield from _classes(one)


def _saw_scaler(name: str, scaler: Any, optimizer: Any, *_: Any, **__: Any) -> None:
    if scaler.is_enabled():
        _tell_all(lambda one: one.saw_scaler(name, optimizer))
        _elsewhere.add(scaler)


def _telling_scale(get_scale: Any) -> Any:
    """GradScaler.get_scale, which tells those who are attached that a trainer wants the number."""
    @functools.wraps(get_scale)
    def told(scaler: Any) -> Any:
        scale = get_scale(scaler)
        if scaler.is_enabled() and scaler not in _elsewhere and _is_trainers():
            _tell_all(lambda one: one.saw_scale_asked(scale))
        return scale
    return told


def _pass_number() -> int:
    """Of the backward pass that is under way; -1: torch does not tell them apart."""
    number = getattr(torch._C, "_current_graph_task_id", None)
    return int(number()) if number is not None else -1


def _noting_scale(scale: Any) -> Any:
    """GradScaler.scale, whose results note their backward passes."""
    def note(scaler: Any, _: torch.Tensor) -> None:
        number = _pass_number()
        _scaled[number] = float(scaler.get_scale())
        if number < 0:
            torch.autograd.Variable._execution_engine.queue_callback(lambda: _scaled.pop(number, None))
        while len(_scaled) > _RUNNING:
            _scaled.pop(next(iter(_scaled)), None)

    @functools.wraps(scale)
    def told(scaler: Any, outputs: Any) -> Any:
        made = scale(scaler, outputs)
        if scaler.is_enabled():
            for one in made if isinstance(made, (list, tuple)) else [made]:
                if isinstance(one, torch.Tensor) and one.requires_grad:
                    one.register_hook(functools.partial(note, scaler))
        return made
    return told


def judge_scaled(name: str) -> None:
    """A gradient of this tensor has come: not in the backward pass of a loss that a GradScaler multiplied."""
    if _scaled and _pass_number() in _scaled:
        scale = _scaled[_pass_number()]
        raise Invalid(f"the loss was multiplied by a torch GradScaler ({scale:g}), and the servers, to whom gradients "
                      f"go as they come, would take the gradient of {name} for that of the loss. " + _INSTEAD_OF_SCALER)
