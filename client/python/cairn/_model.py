"""Which tensors a torch model is made of, and which modules are units.

A parameter is stored once, under its first name, however many modules share it; its other names are aliases. A unit
is what is fetched together, and in stage 3 what is gathered and released together: by default the elements of the
outermost ModuleLists and Sequentials (the blocks), and children of the model without such lists as a whole.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from fnmatch import fnmatchcase
from typing import Any, Dict, List, Mapping, Optional, Sequence, Tuple, Union

import torch
from torch import nn

from .errors import Invalid, Unsupported
from .spec import Box, Init, Part, Tensor
from ._wrapped import inner, judge, own_name

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
    """Frozen, and of a dtype that the servers do not keep: the trainer's own (_own.py)."""
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
