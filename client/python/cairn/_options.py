"""What attach takes: judged before anything is sent. Each option has an effect, or is refused."""

from __future__ import annotations

import dataclasses
import difflib
import inspect
import warnings
from typing import Any, Callable, Dict, FrozenSet, List, Mapping, Optional

import torch
from torch import nn

from ._gradients import room, window_bytes
from ._model import WIRE_TORCH, Slot, Unit, inside_compiled, own_name
from ._window import is_lendable
from .errors import Invalid, Unsupported, first_of
from .spec import JobSpec, Part, Tensor, at_least


def judge_names(options: Mapping[str, Any], attached: Callable[..., None]) -> None:
    """What is no option of attach, which takes those of `attached` and the fields of JobSpec that it does not make."""
    own = {name for name, one in inspect.signature(attached).parameters.items() if one.kind is one.KEYWORD_ONLY}
    known = own | {field.name for field in dataclasses.fields(JobSpec)} - {"tensors", "groups", "workers_max"}
    for name in options:
        if name not in known:
            near = difflib.get_close_matches(name, sorted(known), 1)
            meant = f"; {near[0]} was meant?" if near else "; help(cairn.Session.attach) lists them"
            raise TypeError(f"attach() has no option {name}{meant}")


def judge(model: Any, name: Any, units: Any, parts: Any, counts: Any, mapped_gradients: Any,
          mapped_parameters: Any, must_exist: Any, resume: Any = None, must_not_exist: Any = False,
          takeover: Any = False) -> None:
    if not isinstance(model, nn.Module):
        raise Invalid(f"attach takes a torch.nn.Module, not {model!r}")
    if name is not None and (not isinstance(name, str) or not name):
        raise Invalid(f"name is {name!r}; it must be a word, or None for that of the model's class")
    if isinstance(units, (str, type)):
        raise Invalid(f"units is {units!r}; give a list of classes and patterns: units=[…]")
    if not isinstance(parts, Mapping) or not all(isinstance(part, Part) for part in parts.values()):
        raise Invalid("parts must be {parameter name: cairn.Part}")
    for word, flag in (("counts", counts), ("must_exist", must_exist), ("must_not_exist", must_not_exist),
                       ("takeover", takeover)):
        if not isinstance(flag, bool):
            raise Invalid(f"{word} is {flag!r}; it is True or False")
    if resume not in (None, "latest"):
        raise Invalid(f"resume is {resume!r}; it is None or 'latest'")
    for word, mapped in (("mapped_gradients", mapped_gradients), ("mapped_parameters", mapped_parameters)):
        if mapped is not None and not isinstance(mapped, bool):
            raise Invalid(f"{word} is {mapped!r}; it is True, False, or None for where it helps")


def warn_of_statistics(model: nn.Module) -> None:
    """Where nothing is written."""
    running = [own_name(name) or type(module).__name__ for name, module in model.named_modules()
               if getattr(module, "running_mean", None) is not None]
    if running and model.training:
        warnings.warn("running statistics are changed by the forward pass of each worker and stay with it: "
                      + first_of(running) + "; give attach(…, buffers_every=1) to have those of rank 0 written with "
                      "each step, or bring them by m.write() before a snapshot or an evaluation",
                      stacklevel=4)


def _rewritten(model: nn.Module) -> Dict[int, str]:
    """Weights that a forward pass writes to, by id."""
    return {id(module.weight): own_name(f"{name}.weight".lstrip(".")) for name, module in model.named_modules()
            if getattr(module, "max_norm", None) is not None
            and isinstance(getattr(module, "weight", None), nn.Parameter)}


def judge_max_norm(model: nn.Module) -> None:
    trained = {id(parameter) for parameter in model.parameters() if parameter.requires_grad}
    name = next((name for key, name in _rewritten(model).items() if key in trained), None)
    if name is not None:
        raise Unsupported(f"{name} has max_norm: torch renormalizes the rows of a batch in its forward pass, in this "
                          "trainer's memory, and the servers would go on without that. Leave max_norm out, and before "
                          "the forward pass of a step torch.embedding_renorm_(rows, indices, max_norm, norm_type) on "
                          f"rows = m.state_dict()[{name!r}], then m.write({{{name!r}: rows}})")


def not_written(model: nn.Module, slots: List[Slot]) -> List[Slot]:
    """Whose values are those of the servers as long as a version is here: not a frozen embedding with max_norm, which
    renormalizes the same rows again."""
    rewritten = _rewritten(model)
    return [slot for slot in slots if id(slot.parameter) not in rewritten]


def gradient_bytes(wanted: Optional[bool], slots: List[Slot], stage: int, micro_batches: int, units: List[Unit],
                   window: int) -> Dict[torch.device, int]:
    """Shared memory that gradients are pushed from, of each device: none where the library adds up a step's gradients
    in its own; in stage 3 as much as for the units that are gathered at once, else for those of two backward passes
    at most."""
    adds_up = stage < 2 and micro_batches > 1
    if wanted and adds_up:
        raise Invalid(f"mapped_gradients: in stage {stage} gradients of {micro_batches} micro-batches are added up in "
                      "memory of the library, and pushed from there; leave it out, or take stage 2")
    if wanted and not any(map(room, slots)):
        raise Invalid("mapped_gradients: no parameter that is trained is in memory of the host or of an NVIDIA card; "
                      "leave it out")
    if wanted is False or adds_up:
        return {}
    of_device: Dict[torch.device, List[Slot]] = {}
    for slot in slots:
        of_device.setdefault(slot.device, []).append(slot)
    everything = {device: sum(map(room, here)) * min(2, micro_batches) for device, here in of_device.items()}
    if stage < 3:
        return everything
    return {device: min(nbytes, window_bytes(of_device[device], units, window))
            for device, nbytes in everything.items()}


def _is_lent_whole(slot: Slot, device: torch.device) -> bool:
    return (slot.device == device and device.type in ("cpu", "cuda") and slot.box is None
            and WIRE_TORCH[slot.wire] == slot.parameter.dtype)


def lendable_units(wanted: Optional[bool], model: nn.Module, units: List[Unit], stage: int) -> FrozenSet[Unit]:
    """Whose parameters may be where shards published them: whole, of one device, as they are on the wire, and not
    known to be written to by their module."""
    if wanted and stage != 3:
        raise Invalid(f"mapped_parameters is of stage 3, in stage {stage} all parameters are the model's own: leave it "
                      "out, or give stage=3")
    if wanted is False or stage != 3:
        return frozenset()
    compiled = inside_compiled(model)
    found = frozenset(unit for unit in units if unit.module is not None and id(unit.module) not in compiled
                      and is_lendable(unit.module)
                      and all(_is_lent_whole(slot, unit.slots[0].device) for slot in unit.slots))
    if wanted and not found:
        raise Invalid("mapped_parameters: no unit can be lent: they are compiled, have max_norm, or parameters that "
                      "are parts of tensors, on several devices, or of another dtype than on the wire; leave it out")
    return found


def stage_of(stage: int) -> int:
    if type(stage) is not int or stage not in (0, 1, 2, 3):
        raise Unsupported(f"stage {stage!r}; 0, 1, 2 and 3 are there")
    return stage


def window_size(window: Optional[int], stage: int, units: List[Unit]) -> int:
    if window is None:
        return 2
    at_least(1, "window", window)
    if stage != 3:
        raise Invalid(f"window is of stage 3, in stage {stage} all parameters stay here: leave it out, or give stage=3")
    if not units:
        raise Invalid("window: the model has no units, all of it would stay here; give units=[…], modules of it")
    return window


def with_missed(tensors: List[Tensor], steps_missed: Mapping[str, int]) -> List[Tensor]:
    unknown = sorted(set(steps_missed) - {tensor.name for tensor in tensors if tensor.kind == "trained"})
    if unknown:
        raise Invalid(f"steps_missed names {unknown[0]}, which is no parameter of the model that is trained")
    return [dataclasses.replace(tensor, steps_missed=steps_missed[tensor.name]) if steps_missed.get(tensor.name)
            else tensor for tensor in tensors]
