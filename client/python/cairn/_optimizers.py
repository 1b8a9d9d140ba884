"""What a trainer does to torch's optimizers, schedulers and GradScaler, and to `.grad`, beside an attached model. None
of it reaches the servers, so each is said, or refused where training on would be another training; cf. the table in
README.md.
"""

from __future__ import annotations

import functools
import operator
import sys
import threading
import types
import warnings
import weakref
from typing import Any, Callable, Container, Dict, Iterable, Iterator, List, Optional, Set

import torch
from torch import nn
from torch.optim import optimizer as optimizers

from ._driven import Driver
from ._model import Slot
from .errors import Invalid, Unsupported
from .optim import FromTorch, is_off, judge_option, number_of

try:
    from torch.amp.grad_scaler import GradScaler
except ImportError:  # before torch 2.3
    from torch.cuda.amp.grad_scaler import GradScaler  # type: ignore[no-redef]

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
