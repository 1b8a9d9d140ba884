"""What a trainer was used to do by itself, and what is the servers' now: it is refused or warned of, where torch lets
us see it. (Not torch.nn.utils.clip_grad_norm_: that finds no gradients, which are on their way, and returns 0.)
"""

from __future__ import annotations

import warnings
import weakref
from typing import Any, Iterable, List, Optional

import torch
from torch import nn
from torch.optim import optimizer as optimizers

from ._model import Slot
from ._wrapped import own_name
from .errors import Invalid
from .optim import FromTorch


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


class Replaced:
    """Whether the model still has the parameters that were attached."""

    def __init__(self, model: nn.Module, slots: Iterable[Slot]):
        known = {id(slot.parameter) for slot in slots}
        self._places = [(module._parameters, last, parameter, own_name(f"{prefix}.{last}".lstrip(".")))
                        for prefix, module in model.named_modules() for last, parameter in module._parameters.items()
                        if id(parameter) in known]

    def judge(self) -> None:
        for parameters, last, attached, name in self._places:
            now = parameters[last] if last in parameters else None
            if now is not attached and isinstance(now, nn.Parameter):
                raise Invalid(f"{name} of the model is another parameter than the one that was attached (fully_shard, "
                              "or an assignment): its gradients would reach nobody. Change models before attach; to "
                              "change values: m.write({name: values})")


class TorchOptimizers:
    """Sees that a torch optimizer with parameters of ours makes a step, or that the lr of the one that was taken over
    has changed: neither does anything, and either is said once."""

    def __init__(self, slots: Iterable[Slot], taken: Any):
        self._parameters = {id(slot.parameter): slot for slot in slots if slot.trained}
        self._taken: Optional[FromTorch] = taken if isinstance(taken, FromTorch) else None
        self._has_stepped = False
        register = getattr(optimizers, "register_optimizer_step_pre_hook", None)  # of torch 2
        me = weakref.ref(self)  # torch keeps the hook, of all optimizers

        def on_step(optimizer: Any, *_: Any) -> None:
            mine = me()
            if mine is not None:
                mine._saw(optimizer)

        self.hooks = [] if register is None else [register(on_step)]

    def _saw(self, optimizer: Any) -> None:
        slots = [self._parameters[id(one)] for group in optimizer.param_groups for one in group["params"]
                 if id(one) in self._parameters]
        kind = f"torch.optim.{type(optimizer).__name__}.step()"
        changed = next((slot.name for slot in slots if slot.parameter.grad is not None), None)
        if changed is not None:
            raise Invalid(f"{kind} would change {changed} and others here, and not on the servers, whose step is "
                          "m.step(): leave it out")
        if slots and not self._has_stepped:
            self._has_stepped = True
            warnings.warn(f"{kind} does nothing to a model that is attached: the gradients are at the servers, whose "
                          "step is m.step(); leave it out", stacklevel=4)

    def judge_lr(self) -> None:
        """Of the one that was taken over."""
        changed = self._taken.changed() if self._taken is not None else None
        if changed is not None:
            self._taken = None
            warnings.warn(f"{changed}, and nobody looks at it: the servers keep the lr and the schedule that attach "
                          "was given. Give attach cairn's (schedule=cairn.cosine(…)), or call m.amend({group: "
                          "dict(lr=…)})",
                          stacklevel=3)
