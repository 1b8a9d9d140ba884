"""Which tensors a torch model is made of, and which modules are units.

A parameter is stored once, under its first name, however many modules share it; its other names are aliases. A unit
is what is fetched together, and in stage 3 what is gathered and released together: by default the elements of the
outermost ModuleLists and Sequentials (the blocks), and children of the model without such lists as a whole.
"""

from __future__ import annotations

import sys
from dataclasses import dataclass, field
from fnmatch import fnmatchcase
from typing import Any, Callable, Container, Dict, Iterable, List, Mapping, Optional, Sequence, Set, Tuple, Union

import torch
from torch import nn

from .errors import Invalid, NotFound, Unsupported, some_of
from .session import Session
from .spec import Box, Init, Part, Tensor


# ==== wrappers of torch ====

# Models in wrappers of torch. What torch.compile makes of a module is seen through, and so is what checkpoints or
# offloads its activations: names, units and the job are those of the module inside. What exchanges or cuts parameters
# by itself is refused, since the servers do that.

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


# ==== tensors and units ====

ROOT = "root"  # the unit of parameters that no unit has: gathered as long as a step lasts
UnitChoice = Optional[Sequence[Union[str, type]]]

_LISTS = (nn.ModuleList, nn.ModuleDict, nn.Sequential)
_WIRES = {torch.float32: ("f32", "bf16"), torch.bfloat16: ("bf16", "f32"), torch.float16: ("f32",)}
WIRED = frozenset(_WIRES)  # of parameters and buffers that are tensors of the job
WIRE_TORCH = {"f32": torch.float32, "bf16": torch.bfloat16}


@dataclass(eq=False)
class Slot:
    """One tensor of the job and the Parameter (or buffer) that shows it."""

    name: str
    parameter: torch.Tensor
    wire: str
    kind: str
    aliases: List[str] = field(default_factory=list)  # its other names: tied
    units: List["Unit"] = field(default_factory=list)  # empty: of the root
    whole: Optional[Tuple[int, ...]] = None  # the tensor's shape, if the parameter is a part of it: of `box`
    box: Optional[Box] = None
    init: Optional[Init] = None  # what the shards make of it
    bare: bool = False  # it was on the meta device: its values are still to come

    @property
    def trained(self) -> bool:
        return self.kind == "trained"

    @property
    def device(self) -> torch.device:
        """Where it is, or will be: what is on the meta device comes to the host."""
        return torch.device("cpu") if self.parameter.is_meta else self.parameter.device


@dataclass(eq=False)
class Unit:
    name: str
    module: Optional[nn.Module]
    slots: List[Slot] = field(default_factory=list)


# ---- parameters ----

def stays_here(parameter: nn.Parameter) -> bool:
    """Frozen, and of a dtype that the servers do not keep: the trainer's own (_blobs.py)."""
    return not parameter.requires_grad and parameter.dtype not in _WIRES


def _wire(name: str, parameter: nn.Parameter, wire_dtype: Any) -> str:
    if isinstance(parameter, nn.parameter.UninitializedParameter):
        raise Unsupported(f"{name} is not initialized: a lazy module has its shapes from its first forward pass; do "
                          "one before attach")
    if parameter.is_complex():
        raise Unsupported(f"{name} is {parameter.dtype}: the servers keep fp32 masters of real numbers; keep "
                          "torch.view_as_real(value) as the parameter, and use torch.view_as_complex(parameter)")
    if parameter.dtype not in _WIRES:
        raise Unsupported(f"{name} is {parameter.dtype}: the servers keep fp32 masters, of parameters in float32, "
                          "bfloat16 or float16; convert the model, or take the tensor out of its parameters")
    allowed = _WIRES[parameter.dtype]
    if wire_dtype is None:
        return allowed[0]
    word = {dtype: word for word, dtype in WIRE_TORCH.items()}.get(wire_dtype, str(wire_dtype))
    if word not in allowed:
        raise Unsupported(f"wire_dtype {word} for {name}, which is {parameter.dtype}; allowed is "
                          f"{' or '.join(allowed)}")
    return word


def slots_of(model: nn.Module, wire_dtype: Any = None) -> List[Slot]:
    """Every parameter once, in the order of the model."""
    judge(model)
    slots: Dict[int, Slot] = {}
    for prefix, module in model.named_modules(remove_duplicate=False):
        prefix = own_name(prefix)
        for last, parameter in module._parameters.items():
            if parameter is None or stays_here(parameter):
                continue
            name = f"{prefix}.{last}" if prefix else last
            if id(parameter) in slots:
                slots[id(parameter)].aliases.append(name)
            else:
                slots[id(parameter)] = Slot(name, parameter, _wire(name, parameter, wire_dtype),
                                            "trained" if parameter.requires_grad else "frozen")
    if not slots:
        raise Invalid("the model has no parameters")
    return list(slots.values())


def set_parts(slots: Sequence[Slot], parts: Mapping[str, Part]) -> None:
    """Parameters that are parts of tensors, by name."""
    by_name = {slot.name: slot for slot in slots}
    for name, part in parts.items():
        if name not in by_name:
            raise Invalid(f"parts: {name!r} is not the (first) name of a parameter; there are "
                          + ", ".join(list(by_name)[:5]) + ", …")
        slot = by_name[name]
        slot.whole, slot.box = tuple(part.shape), Box(tuple(part.start), tuple(slot.parameter.shape))


def buffers_of(model: nn.Module) -> List[Slot]:
    """Those that a state dict has and that are floating point of a kind that the servers keep; for others in it see
    _buffers.raw_of."""
    persistent = set(map(own_name, model.state_dict(keep_vars=True)))
    return [Slot(own_name(name), buffer, _WIRES[buffer.dtype][0], "buffer") for name, buffer in model.named_buffers()
            if own_name(name) in persistent and buffer.dtype in _WIRES]


def tensors_of(slot: Slot, group: Optional[str]) -> List[Tensor]:
    """The tensor, then its other names."""
    shape = tuple(slot.parameter.shape) if slot.whole is None else slot.whole
    unit = slot.units[0].name if slot.units else ROOT
    first = Tensor(slot.name, shape, unit, group if slot.trained else None, slot.wire, slot.kind, init=slot.init)
    return [first] + [Tensor(alias, shape, unit, wire=slot.wire, kind=slot.kind, alias_of=slot.name)
                      for alias in slot.aliases]


# ---- units ----

def _has_parameters(module: nn.Module) -> bool:
    return next(module.parameters(), None) is not None


def _walk_blocks(module: nn.Module, prefix: str, found: Dict[str, nn.Module]) -> None:
    module = inner(module)
    for last, child in module.named_children():
        name = f"{prefix}{last}"
        if not _has_parameters(child) or any(child is one for one in found.values()):
            continue
        if isinstance(inner(child), _LISTS) or (not isinstance(module, _LISTS) and any(
                isinstance(inner, (nn.ModuleList, nn.ModuleDict)) for inner in child.modules())):
            _walk_blocks(child, name + ".", found)
        else:
            found[name] = child


def _is_chosen(name: str, module: nn.Module, choice: Union[str, type]) -> bool:
    if isinstance(choice, str):
        return fnmatchcase(name, choice)
    return isinstance(inner(module), choice)


def _walk_chosen(module: nn.Module, prefix: str, choices: Sequence[Union[str, type]], found: Dict[str, nn.Module],
                 used: set) -> None:
    for last, child in inner(module).named_children():
        name = f"{prefix}{last}"
        taken = [i for i, choice in enumerate(choices) if _is_chosen(name, child, choice)]
        used.update(taken)
        if not taken:
            _walk_chosen(child, name + ".", choices, found, used)
        elif _has_parameters(child) and not any(child is one for one in found.values()):
            found[name] = child


def units_of(model: nn.Module, slots: Sequence[Slot], choice: UnitChoice) -> List[Unit]:
    """The units in the order of the model; sets slot.units. A slot that the root itself uses stays with the root."""
    found: Dict[str, nn.Module] = {}
    if choice is None:
        _walk_blocks(model, "", found)
    else:
        used: set = set()
        _walk_chosen(model, "", choice, found, used)
        for i, one in enumerate(choice):
            if i not in used:
                raise Invalid(f"units: {one if isinstance(one, str) else one.__name__!r} matches no module; there are "
                              + ", ".join(name for name, _ in list(inner(model).named_modules())[1:6]) + ", …")
    units = [Unit(name, module) for name, module in found.items()]
    inside = {id(inner) for unit in units for inner in unit.module.modules()}  # type: ignore[union-attr]
    of_root = {id(p) for module in model.modules() if id(module) not in inside
               for p in module._parameters.values() if p is not None}
    by_parameter = {id(slot.parameter): slot for slot in slots}
    for unit in units:
        for parameter in unit.module.parameters():  # type: ignore[union-attr]
            slot = by_parameter.get(id(parameter))
            if slot is not None and id(parameter) not in of_root:
                unit.slots.append(slot)
                slot.units.append(unit)
    return [unit for unit in units if unit.slots]


# ==== models without memory ====

# Models that are built on torch's meta device, without memory: their values come from the servers (a running job,
# `init_from`), or are made by these (`init`), and no client ever has to hold all of them.
#
# A tensor cannot change its device, so the model gets new Parameter objects, under all names of the old ones: what else
# refers to the old ones (a torch optimizer that was taken over, hooks) goes without.


_NAMED = 10  # tensors in a sentence


def set_initializers(slots: Sequence[Slot], init: Any) -> None:
    """By the first pattern that a name matches."""
    if not isinstance(init, Mapping) or not all(isinstance(one, Init) for one in init.values()):
        raise Invalid("init must be {name or pattern of parameters or buffers: cairn.Init(…)}")
    used = set()
    for slot in slots:
        pattern = next((one for one in init if fnmatchcase(slot.name, one)), None)
        if pattern is not None:
            slot.init = init[pattern]
            used.add(pattern)
    left = [pattern for pattern in init if pattern not in used]
    if left:
        raise Invalid(f"init: {left[0]!r} is no (first) name of a parameter or buffer, and no pattern of one that an "
                      "earlier pattern leaves")


def without(slots: Sequence[Slot], names: Container[str], there: Optional[Mapping[str, Tensor]]) -> List[Slot]:
    """But those whose values come from elsewhere: their initializers are those of the job that is there, or none."""
    for slot in slots:
        if slot.name in names:
            slot.init = there[slot.name].init if there is not None and slot.name in there else None
    return [slot for slot in slots if slot.name not in names]


def judge_buffers(model: nn.Module, kept: Sequence[Slot]) -> None:
    """Those on the meta device that no server has: nobody could say what is in them."""
    ours = {slot.name for slot in kept}
    lost = [own_name(name) for name, buffer in model.named_buffers() if buffer.is_meta and own_name(name) not in ours]
    if lost:
        where, _, last = lost[0].rpartition(".")
        raise Invalid(f"buffers on the meta device that the servers do not keep, since they are not persistent or are "
                      f"neither float32, bfloat16 nor float16: {some_of(lost, _NAMED)}; give each its values before "
                      f"attach, as in model.{where + '.' if where else ''}{last} = torch.tensor(…)")


def missing(slots: Sequence[Slot]) -> List[Slot]:
    """Those without values, here or by an initializer."""
    return [slot for slot in slots if slot.parameter.is_meta and slot.init is None]


def tensors_of_job(session: Session, name: str, timeout: float) -> Optional[Dict[str, Tensor]]:
    """By name; None: there is no such job."""
    try:
        with session.open_reader(name, timeout) as job:
            return {tensor.name: tensor for tensor in job.tensors()}
    except NotFound:
        return None


def find_source(session: Session, name: str, slots: Sequence[Slot], must_make: bool, timeout: float,
                resume: Optional[str]) -> None:
    """What has no values here: of a job that is there, whose initializers are taken over, so that it is the same job.
    `must_make`: it is for this worker to bring the initial state, else for another one."""
    if not missing(slots):
        return
    there = tensors_of_job(session, name, timeout)
    if there is None and resume is not None:
        raise Unsupported(f"resume={resume!r}: there is no job {name}, and what it was initialized with is not known "
                          f"here, since {some_of([slot.name for slot in missing(slots)], _NAMED)} are on the meta "
                          f"device: `cairn snapshot restore {name} latest` first, or attach a model on the CPU")
    if there is None and must_make:
        raise _without_source(name, missing(slots))
    for slot in missing(slots):
        slot.init = there[slot.name].init if there is not None and slot.name in there else None


def judge_values(name: str, slots: Sequence[Slot]) -> None:
    """The initial state is this worker's to bring."""
    if missing(slots):
        raise _without_source(name, missing(slots))


def _without_source(name: str, lacking: Sequence[Slot]) -> Invalid:
    return Invalid(f"nobody has the initial values of job {name}: on the meta device are "
                   f"{some_of([slot.name for slot in lacking], _NAMED)}; give init={{pattern: cairn.Init(…)}}, "
                   "init_from=… (the shards read safetensors), or attach a model on the CPU as rank 0 first")


def _memory(slot: Slot, is_out: bool) -> torch.Tensor:
    """Values to come; none if it is not gathered now: one NaN, expanded."""
    old = slot.parameter
    if not is_out:
        return torch.empty_like(old, device="cpu")  # type: ignore[no-any-return]
    return torch.full((1,), float("nan"), dtype=old.dtype).as_strided(old.shape, (0,) * old.dim())


def materialize(model: nn.Module, slots: Sequence[Slot], is_out: Callable[[Slot], bool]) -> None:
    """Parameters and buffers that are on the meta device are of the host from now on."""
    made: Dict[int, Tuple[torch.Tensor, torch.Tensor]] = {}  # the old one too: its id stays its own
    for slot in slots:
        old = slot.parameter
        if old.is_meta:
            slot.bare = True
            new = _memory(slot, is_out(slot))
            if isinstance(old, nn.Parameter):
                new = torch.Tensor._make_subclass(type(old), new, old.requires_grad)  # type: ignore[attr-defined]
                new.__dict__.update(old.__dict__)
            slot.parameter = new
            made[id(old)] = old, new
    for module in model.modules():
        for last, old in list(module._parameters.items()) + list(module._buffers.items()):
            if old is not None and id(old) in made:
                setattr(module, last, made[id(old)][1])
