"""What a job is, in Python's words: tensors, groups of hyper-parameters, and how they become C structs."""

from __future__ import annotations

import ctypes
from dataclasses import dataclass, field
from typing import Any, Dict, List, NamedTuple, Optional, Sequence, Tuple

from . import _c
from .errors import Invalid

DTYPES = {"f32": _c.F32, "bf16": _c.BF16, "f16": _c.F16, "f64": _c.F64}
KINDS = {"trained": _c.TRAINED, "frozen": _c.FROZEN}
NONFINITE = {"skip": _c.NONFINITE_SKIP, "fail": _c.NONFINITE_FAIL}


class Version(NamedTuple):
    """A state of the parameters. `generation` starts anew on a restore; `step` counts applied updates."""

    generation: int
    step: int


class Box(NamedTuple):
    """A part of a tensor, in elements of each dimension."""

    start: Tuple[int, ...]
    extent: Tuple[int, ...]

    @classmethod
    def whole(cls, shape: Sequence[int]) -> "Box":
        return cls((0,) * len(shape), tuple(shape))


class Tile(NamedTuple):
    """What a worker holds of a tensor."""

    tensor: str
    box: Box


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


def number(table: Dict[str, int], what: str, name: str) -> int:
    """The number of cairn.h for a word, or Invalid with the words that are allowed."""
    if name not in table:
        raise Invalid(f"{what} is {name!r}; allowed are {', '.join(table)}")
    return table[name]


def text(string: Optional[str]) -> Optional[bytes]:
    return None if string is None else string.encode()


def box_to_c(box: Box) -> _c.Box:
    if len(box.start) != len(box.extent) or len(box.start) > _c.RANK_MAX:
        raise Invalid(f"a box of {len(box.start)} starts and {len(box.extent)} extents; as many as dimensions are "
                      f"needed, and at most {_c.RANK_MAX}")
    made = _c.Box(rank=len(box.start))
    for d, (start, extent) in enumerate(zip(box.start, box.extent)):
        made.start[d], made.extent[d] = start, extent
    return made


def word(table: Dict[str, int], value: int) -> str:
    """The other way round: what a number of cairn.h is called here."""
    return next((name for name, number_ in table.items() if number_ == value), str(value))


def tensor_from_c(tensor: _c.Tensor) -> Tensor:
    group = tensor.group.decode() if tensor.group else None
    return Tensor(tensor.name.decode(), tuple(tensor.shape[:tensor.rank]), tensor.unit.decode(), group or None,
                  word(DTYPES, tensor.wire), word(KINDS, tensor.kind))


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
