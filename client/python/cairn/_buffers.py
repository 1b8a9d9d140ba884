"""Buffers of a model that the servers keep: those of floating point as tensors, others (integers, bools, float64) bit
by bit, as blobs of their names; what they are is listed in one more, so that an export has them as numbers. A
forward pass changes some of them (running statistics), which one worker then writes with the step: rank 0, or with
global_batch whoever had the last micro-batch.

A write is a version of its own, (generation + 1, the same step), so the parameters are fetched once, at that version,
and the periodic snapshot of the step is of it (JobSpec.buffers_every).
"""

from __future__ import annotations

import ctypes
import json
import warnings
from typing import Any, Dict, List, Mapping, Optional, Set

import torch
from torch import nn

from . import _blobs
from ._model import WIRED, Slot, own_name
from .errors import Invalid
from .job import Job
from .spec import Tensor, Version, at_least

LIST = "cairn.buffers"  # {name: {"dtype", "shape"}} of those that are kept as their bytes, in safetensors' words
_WORDS = {torch.int64: "I64", torch.int32: "I32", torch.int16: "I16", torch.int8: "I8", torch.uint8: "U8",
          torch.bool: "BOOL", torch.float64: "F64", torch.complex64: "C64"}
_CHANGED_BY_FORWARD = ("running_mean", "running_var", "num_batches_tracked", "weight_u", "weight_v", "_u", "_v")
_SMALL_ELEMS = 1 << 22  # parameters of a model for which a write with every step is little
_LARGE_EVERY = 10
_WATCHED_ELEMS = 1 << 20
_LOOKS = 3  # steps after which it is known what a forward pass changes


def raw_of(model: nn.Module) -> Dict[str, torch.Tensor]:
    """Those of a state dict that are kept as their bytes, by name."""
    persistent = set(map(own_name, model.state_dict(keep_vars=True)))
    return {own_name(name): buffer for name, buffer in model.named_buffers()
            if own_name(name) in persistent and buffer.dtype not in WIRED and not buffer.is_meta and buffer.numel() > 0
            and buffer.layout == torch.strided}


def bytes_of(buffer: torch.Tensor) -> bytes:
    here = buffer.detach().cpu().contiguous()
    return ctypes.string_at(here.data_ptr(), here.numel() * here.element_size())


def from_bytes(data: torch.Tensor, buffer: torch.Tensor) -> Optional[torch.Tensor]:
    """Of bytes, uint8, what the buffer can take; None: they are of another one."""
    if data.dtype != torch.uint8 or data.numel() != length(buffer):
        return None
    return torch.frombuffer(bytearray(bytes_of(data)), dtype=buffer.dtype).view(buffer.shape)


def length(buffer: torch.Tensor) -> int:
    return buffer.numel() * buffer.element_size()


def to_write(buffer: torch.Tensor, name: str, value: Any) -> bytes:
    """What the trainer gives for it."""
    if isinstance(value, torch.Tensor):
        if value.dtype != buffer.dtype or value.shape != buffer.shape:
            raise Invalid(f"{name} is {buffer.dtype} of {list(buffer.shape)}, not {value.dtype} of {list(value.shape)}")
        return bytes_of(value)
    return bytes(value)


def tensors(raw: Mapping[str, torch.Tensor]) -> List[Tensor]:
    return [Tensor(name, (length(buffer),), kind="blob", wire="u8") for name, buffer in raw.items()]


def listed(raw: Mapping[str, torch.Tensor]) -> Dict[str, bytes]:
    """The blob that says what they are, if there are any."""
    found = {name: {"dtype": _WORDS[buffer.dtype], "shape": list(buffer.shape)} for name, buffer in raw.items()
             if buffer.dtype in _WORDS}
    return {LIST: json.dumps(found, sort_keys=True).encode()} if found else {}


def load(job: Job, version: Version, raw: Mapping[str, torch.Tensor], timeout: float) -> None:
    with torch.no_grad():
        for name, buffer in raw.items():
            data = bytearray(_blobs.read(job, name, timeout, version))
            buffer.copy_(torch.frombuffer(data, dtype=buffer.dtype).view(buffer.shape))


def there(job: Job, raw: Mapping[str, torch.Tensor]) -> Dict[str, torch.Tensor]:
    """Of a reader's: those that the job has."""
    blobs = {tensor.name: tensor.shape for tensor in job.tensors() if tensor.kind == "blob"}
    return {name: buffer for name, buffer in raw.items() if blobs.get(name) == (length(buffer),)}


def every(model: nn.Module, given: Optional[int]) -> int:
    """Steps between two writes; 0: none."""
    persistent = set(map(own_name, model.state_dict(keep_vars=True)))
    names = [name.rpartition(".")[2] for name, buffer in model.named_buffers()
             if own_name(name) in persistent and buffer.numel() > 0]
    if given is not None:
        if at_least(0, "buffers_every", given, 2 ** 48) > 0 and not names:
            raise Invalid(f"buffers_every is {given}, and the model has no buffers that a state dict has: leave it out")
        return given
    if not any(name.endswith(_CHANGED_BY_FORWARD) for name in names):
        return 0
    return 1 if sum(p.numel() for p in model.parameters()) <= _SMALL_ELEMS else _LARGE_EVERY


class Places:
    """Where the model has its buffers. It may put new tensors there: self.mean = … in a forward pass, .to() and the
    like."""

    def __init__(self, model: nn.Module, without: str = "no snapshot, reader or export has"):
        """`without`: who has not what the model puts there with another shape or dtype."""
        self._without = without
        self._at = {own_name(f"{prefix}.{last}".lstrip(".")): (module._buffers, last)
                    for prefix, module in model.named_modules() for last in module._buffers.keys()}
        self._told: Set[str] = set()

    def now(self, name: str, had: torch.Tensor) -> torch.Tensor:
        """The tensor that it has for `had`."""
        there, last = self._at[name]
        found = there[last] if last in there else None
        if found is had:
            return had
        if isinstance(found, torch.Tensor) and (found.shape, found.dtype) == (had.shape, had.dtype):
            return found
        if name not in self._told:
            self._told.add(name)
            is_now = f"{found.dtype} of {list(found.shape)}" if isinstance(found, torch.Tensor) else "no tensor"
            warnings.warn(f"buffer {name} was {had.dtype} of {list(had.shape)} at attach and is {is_now} now, which "
                          f"{self._without}: register_buffer(…, persistent=False) if nobody needs it "
                          "there, else keep its shape and dtype", stacklevel=7)
        return had


    def follow(self, slots: List[Slot], raw: Dict[str, torch.Tensor]) -> None:
        """They are the tensors that the model has now."""
        for slot in slots:
            slot.parameter = self.now(slot.name, slot.parameter)
        for name, buffer in raw.items():
            raw[name] = self.now(name, buffer)


class Written:
    """What of the buffers is at the servers: as they were when they were loaded or written last."""

    def __init__(self, model: nn.Module, slots: List[Slot], raw: Dict[str, torch.Tensor], every_steps: int,
                 is_asked: bool):
        """`is_asked`: the trainer has said how often they are written; else it is told where that is never, and they
        change, masks and the like left out."""
        self._slots, self._raw, self._places = slots, raw, Places(model)
        self._looks = 0 if is_asked or every_steps > 0 else _LOOKS
        self._watched = {name for name, buffer in self._buffers.items()
                         if every_steps > 0 or (self._looks > 0 and buffer.numel() <= _WATCHED_ELEMS)}
        self._were: Dict[str, torch.Tensor] = {}
        self.note()

    @property
    def _buffers(self) -> Dict[str, torch.Tensor]:
        return {**{slot.name: slot.parameter for slot in self._slots}, **self._raw}

    def follow(self) -> None:
        """`slots` and `raw` are the tensors that the model has now."""
        self._places.follow(self._slots, self._raw)

    def note(self) -> None:
        self._were = {name: buffer.detach().clone() for name, buffer in self._buffers.items() if name in self._watched}

    def changed(self) -> Dict[str, Any]:
        """By name, as they are written. NaN is as it was where it was."""
        if self._watched:
            self.follow()
        new = {name: buffer for name, buffer in self._buffers.items()
               if name in self._watched and not _is_same(buffer.detach(), self._were[name])}
        return self._given(new)

    def some(self) -> Dict[str, Any]:
        """Something to write where nothing has changed: others wait for a version."""
        buffers = self._buffers
        least = min(buffers, key=lambda name: length(buffers[name]))
        return self._given({least: buffers[least]})

    def _given(self, buffers: Mapping[str, torch.Tensor]) -> Dict[str, Any]:
        return {name: bytes_of(buffer) if name in self._raw else buffer for name, buffer in buffers.items()}

    def unwritten(self) -> List[str]:
        """After a step, where nothing is written: buffers that have changed. Of the first steps, and once."""
        if self._looks == 0:
            return []
        names = list(self.changed())
        self._looks = 0 if names else self._looks - 1
        if self._looks == 0:
            self._watched, self._were = set(), {}
        return names


def _is_same(a: torch.Tensor, b: torch.Tensor) -> bool:
    if torch.equal(a, b):
        return True
    return a.is_floating_point() and bytes_of(a) == bytes_of(b)
