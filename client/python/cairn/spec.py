"""What a job is, in Python's words: tensors, groups of hyper-parameters, and how they become C structs."""

from __future__ import annotations

import ctypes
from dataclasses import dataclass, field
from typing import Any, List, NamedTuple, Optional, Sequence, Tuple

from . import _c
from .errors import Invalid

DTYPES = {"f32": _c.F32, "bf16": _c.BF16, "f16": _c.F16, "f64": _c.F64}
KINDS = {"trained": _c.TRAINED, "frozen": _c.FROZEN}
NONFINITE = {"skip": _c.NONFINITE_SKIP, "fail": _c.NONFINITE_FAIL}


class Version(NamedTuple):
    """A state of the parameters. `generation` starts anew on a restore; `step` counts applied updates."""

    generation: int
    step: int


@dataclass(frozen=True)
class Tensor:
    """`unit`: tensors of one unit are fetched together. `group`: whose hyper-parameters; None = "default".
    `wire`: dtype of what is fetched, "f32" or "bf16". `kind`: "trained" or "frozen"."""

    name: str
    shape: Tuple[int, ...]
    unit: Optional[str] = None
    group: Optional[str] = None
    wire: str = "f32"
    kind: str = "trained"

    @property
    def elems(self) -> int:
        count = 1
        for extent in self.shape:
            count *= extent
        return count


@dataclass(frozen=True)
class Group:
    """Hyper-parameters of the tensors that name it. `optimizer`: "adamw", "adam" or "sgd"."""

    name: str = "default"
    optimizer: str = "adamw"
    lr: float = 1e-3
    beta1: float = 0.9
    beta2: float = 0.999
    eps: float = 1e-8
    weight_decay: float = 0.0
    momentum: float = 0.0
    nesterov: bool = False


@dataclass(frozen=True)
class JobSpec:
    """`rank`: this worker's, unique in the job. `workers_min`: a round opens with at least so many.
    `clip_norm`: of the global gradient norm, 0 = none. `on_nonfinite`: "skip" or "fail"."""

    tensors: Sequence[Tensor]
    groups: Sequence[Group] = field(default_factory=lambda: (Group(),))
    rank: int = 0
    workers_min: int = 1
    clip_norm: float = 0.0
    loss_scale: float = 1.0
    on_nonfinite: str = "skip"
    chunk_leaves: int = 0
    window: int = 0


def number(table: dict, what: str, word: str) -> int:
    """The number of cairn.h for a word, or Invalid with the words that are allowed."""
    if word not in table:
        raise Invalid(f"{what} is {word!r}; allowed are {', '.join(table)}")
    return table[word]


def text(string: Optional[str]) -> Optional[bytes]:
    return None if string is None else string.encode()


def box_of(shape: Sequence[int]) -> _c.Box:
    """The whole of a tensor of that shape. The library compares it with the job's, so that a tensor of another
    shape is refused and its memory never overrun."""
    if len(shape) > _c.RANK_MAX:
        raise Invalid(f"{len(shape)} dimensions; at most {_c.RANK_MAX} are allowed")
    box = _c.Box(rank=len(shape))
    for d, extent in enumerate(shape):
        box.extent[d] = extent
    return box


def _tensor(tensor: Tensor) -> _c.Tensor:
    made = _c.Tensor(name=text(tensor.name), unit=text(tensor.unit), group=text(tensor.group),
                     wire=number(DTYPES, f"wire of {tensor.name}", tensor.wire), rank=len(tensor.shape),
                     kind=number(KINDS, f"kind of {tensor.name}", tensor.kind))
    if len(tensor.shape) > _c.RANK_MAX:
        raise Invalid(f"tensor {tensor.name} has {len(tensor.shape)} dimensions; at most {_c.RANK_MAX} are allowed")
    for d, extent in enumerate(tensor.shape):
        made.shape[d] = extent
    return made


def _group(group: Group) -> _c.Group:
    return _c.Group(name=text(group.name), optimizer=text(group.optimizer), lr=group.lr, beta1=group.beta1,
                    beta2=group.beta2, eps=group.eps, weight_decay=group.weight_decay, momentum=group.momentum,
                    nesterov=group.nesterov)


def to_c(spec: JobSpec) -> Tuple[_c.JobSpec, List[Any]]:
    """The C struct and what it points to, which must live as long as it is used."""
    tensors = (_c.Tensor * len(spec.tensors))(*[_tensor(t) for t in spec.tensors])
    groups = (_c.Group * len(spec.groups))(*[_group(g) for g in spec.groups])
    made = _c.JobSpec(tensors=ctypes.cast(tensors, ctypes.POINTER(_c.Tensor)), tensor_count=len(spec.tensors),
                      groups=ctypes.cast(groups, ctypes.POINTER(_c.Group)), group_count=len(spec.groups),
                      rank=spec.rank, workers_min=spec.workers_min, clip_norm=spec.clip_norm,
                      loss_scale=spec.loss_scale, on_nonfinite=number(NONFINITE, "on_nonfinite", spec.on_nonfinite),
                      chunk_leaves=spec.chunk_leaves, window=spec.window)
    return made, [tensors, groups]
