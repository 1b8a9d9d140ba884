"""Models in wrappers of torch. What torch.compile makes of a module is seen through, and so is what checkpoints or
offloads its activations: names, units and the job are those of the module inside. What exchanges or cuts parameters by
itself is refused, since the servers do that.
"""

from __future__ import annotations

import sys
from typing import Any, Callable, Iterable, Optional, Set

import torch
from torch import nn

from .errors import Invalid, Unsupported

# Where a wrapper has the module. torch takes these out of the names of a state dict, too; the names of other wrappers,
# such as AveragedModel's "module", it leaves there.
_INSIDE = {"OptimizedModule": "_orig_mod",  # of torch.compile
           "ActivationWrapper": "_checkpoint_wrapped_module",  # of checkpoint_wrapper and offload_wrapper
           "CheckpointWrapper": "_checkpoint_wrapped_module"}  # of torch 1.13
_EXCHANGES = ("DistributedDataParallel", "DataParallel", "FullyShardedDataParallel")
_LIBRARIES = ("torch.", "apex.", "fairscale.")


def _inside(module: Any) -> Optional[str]:
    """Where this wrapper has its module; None: it is none."""
    return next((_INSIDE[one.__name__] for one in type(module).__mro__
                 if one.__name__ in _INSIDE and _INSIDE[one.__name__] in module._modules), None)


def inner(module: Any) -> Any:
    """The module that a wrapper was given, or itself."""
    inside = _inside(module)
    while inside is not None:
        module = module._modules[inside]
        inside = _inside(module)
    return module


def own_name(name: str) -> str:
    """Of a module, parameter or buffer, as it is without wrappers."""
    return ".".join(part for part in name.split(".") if part not in _INSIDE.values())


def is_compiled(module: nn.Module) -> bool:
    """By torch.compile(module), module.compile() or torch.jit: it, not what is inside."""
    return (isinstance(module, torch.jit.ScriptModule) or _inside(module) == _INSIDE["OptimizedModule"]
            or getattr(module, "_compiled_call_impl", None) is not None)


def inside_compiled(model: nn.Module) -> Set[int]:
    """The ids of modules that are compiled, by themselves or with one that they are in."""
    return {id(part) for module in model.modules() if is_compiled(module) for part in module.modules()}


class Outside:
    """A hook that torch.compile leaves alone: the graph ends before it, and goes on behind it. In a copy of the module,
    a pickled one too, it does nothing: that is not attached."""

    def __init__(self, hook: Optional[Callable[..., Any]] = None):
        dynamo = sys.modules.get("torch._dynamo")  # who has compiled nothing yet is spared the import
        self._hook = hook if dynamo is None or hook is None else dynamo.disable(hook)

    def __reduce__(self) -> Any:
        return Outside, ()

    def __call__(self, *given: Any) -> Any:
        return self._hook(*given) if self._hook is not None else None


def before_forward(module: nn.Module, hook: Callable[..., Any]) -> Any:
    """Registers it, in front of the hooks of others there: spectral_norm computes a weight of parameters in its own."""
    handle = module.register_forward_pre_hook(Outside(hook))
    module._forward_pre_hooks.move_to_end(handle.id, last=False)
    return handle


def judge_hooked(model: nn.Module, units: Iterable[Any]) -> None:
    """The model and the modules of these units take our hooks."""
    named = [("the model", model)] + [(f"unit {unit.name}", unit.module) for unit in units]
    scripted = next((what for what, module in named if isinstance(module, torch.jit.ScriptModule)), None)
    if scripted is not None:
        raise Unsupported(f"{scripted} is made by torch.jit, whose modules take no hooks, by which parameters come and "
                          "gradients go: attach the module that torch.jit was given, and train that, or have it inside "
                          "another module (in stage 3 inside a unit)")


def judge(model: nn.Module) -> None:
    for name, module in model.named_modules():
        kind = next((one.__name__ for one in type(module).__mro__
                     if one.__name__ in _EXCHANGES and one.__module__.startswith(_LIBRARIES)), None)
        if kind is not None:
            where = f"{own_name(name)} of the model" if name else "the model"
            raise Invalid(f"{where} is in {kind}, which exchanges gradients and keeps parameters by itself; the "
                          "servers do that here, and both would do it twice: give the module inside (.module), and "
                          "train with that")
    for name, parameter in model.named_parameters():
        if getattr(parameter, "placements", None) is not None:
            raise Invalid(f"{own_name(name)} is a {type(parameter).__name__}, of which this process has a part: "
                          "fully_shard or another plan has cut the model. Give the model as it is without that; "
                          "stage=3 keeps a few units of it in memory, and parts=… says where tensor-parallel "
                          "parameters lie")
