"""Models that are built on torch's meta device, without memory: their values come from the servers (a running job,
`init_from`), or are made by these (`init`), and no client ever has to hold all of them.

A tensor cannot change its device, so the model gets new Parameter objects, under all names of the old ones: what else
refers to the old ones (a torch optimizer that was taken over, hooks) goes without.
"""

from __future__ import annotations

from fnmatch import fnmatchcase
from typing import Any, Callable, Container, Dict, List, Mapping, Optional, Sequence, Tuple

import torch
from torch import nn

from ._model import Slot
from .errors import Invalid, NotFound, Unsupported
from .session import Session
from .spec import Init, Tensor
from ._wrapped import own_name


def _listed(names: Sequence[str]) -> str:
    return ", ".join(names[:10]) + (f" and {len(names) - 10} more" if len(names) > 10 else "")


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
                      f"neither float32, bfloat16 nor float16: {_listed(lost)}; give each its values before attach, "
                      f"as in model.{where + '.' if where else ''}{last} = torch.tensor(…)")


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
                          f"here, since {_listed([slot.name for slot in missing(slots)])} are on the meta device: "
                          f"`cairn snapshot restore {name} latest` first, or attach a model on the CPU")
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
                   f"{_listed([slot.name for slot in lacking])}; give init={{pattern: cairn.Init(…)}}, init_from=… "
                   "(the shards read safetensors), or attach a model on the CPU as rank 0 first")


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
