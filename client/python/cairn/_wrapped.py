"""Models in wrappers of torch. What torch.compile makes of a module is seen through: names, units and the job are those
of the module inside. What exchanges or cuts parameters by itself is refused, since the servers do that.
"""

from __future__ import annotations

import sys
from typing import Any, Callable, Iterable, Set

import torch
from torch import nn

from .errors import Invalid, Unsupported

_INSIDE = "_orig_mod"  # where an OptimizedModule, which torch.compile makes, has the module
_EXCHANGES = ("DistributedDataParallel", "DataParallel", "FullyShardedDataParallel")
_LIBRARIES = ("torch.", "apex.", "fairscale.")


def inner(module: Any) -> Any:
    """The module that torch.compile was given, or itself."""
    while type(module).__name__ == "OptimizedModule" and _INSIDE in module._modules:
        module = module._modules[_INSIDE]
    return module


def own_name(name: str) -> str:
    """Of a module, parameter or buffer, as it is without torch.compile."""
    return ".".join(part for part in name.split(".") if part != _INSIDE)


def is_compiled(module: nn.Module) -> bool:
    """By torch.compile(module), module.compile() or torch.jit: it, not what is inside."""
    return (isinstance(module, torch.jit.ScriptModule) or inner(module) is not module
            or getattr(module, "_compiled_call_impl", None) is not None)


def inside_compiled(model: nn.Module) -> Set[int]:
    """The ids of modules that are compiled, by themselves or with one that they are in."""
    return {id(part) for module in model.modules() if is_compiled(module) for part in module.modules()}


def outside(hook: Callable[..., Any]) -> Callable[..., Any]:
    """The hook, which torch.compile leaves alone: the graph ends before it, and goes on behind it. Who has compiled
    nothing yet is spared the import."""
    dynamo = sys.modules.get("torch._dynamo")
    return hook if dynamo is None else dynamo.disable(hook)  # type: ignore[no-any-return]


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
