"""Opaque bytes of a job (the extra state of FP8 modules, a tokenizer's table): put once, written at a step boundary,
saved and read as they are. Bytes and tensors of uint8 are taken; nothing is ever pickled or unpickled here.
"""

from __future__ import annotations

import ctypes
import hashlib
import warnings
from typing import Any, Collection, Dict, List, Mapping, Optional, Tuple

import torch
from torch import nn

from ._model import own_name, stays_here
from ._transfer import of_newest
from .errors import Invalid, Mismatch, NotFound, first_of
from .job import Job
from .memory import Memory
from .spec import Tensor, Version




def _bytes(name: str, value: Any) -> bytes:
    if isinstance(value, (bytes, bytearray, memoryview)):
        return bytes(value)
    if not isinstance(value, torch.Tensor) or value.dtype != torch.uint8:
        what = value.dtype if isinstance(value, torch.Tensor) else type(value).__name__
        raise Invalid(f"blob {name} is {what}; bytes and tensors of torch.uint8 are taken, and nothing is pickled here")
    memory = Memory(value.detach().cpu().contiguous(), writable=False)
    return ctypes.string_at(memory.address, memory.nbytes) if memory.nbytes > 0 else b""


def taken(blobs: Mapping[str, Any], others: Collection[str]) -> Dict[str, bytes]:
    """What attach was given; `others`: the names of tensors."""
    if not isinstance(blobs, Mapping):
        raise Invalid(f"blobs is {type(blobs).__name__}; it must be {{name: bytes}}")
    for name in blobs:
        if not isinstance(name, str) or name in others:
            raise Invalid(f"blobs: {name!r} is no name, or the name of a tensor of the model")
    return {name: _bytes(name, value) for name, value in blobs.items()}


def tensors(blobs: Mapping[str, bytes]) -> List[Tensor]:
    return [Tensor(name, (len(value),), kind="blob", wire="u8") for name, value in blobs.items()]


def warn_of_extra_state(model: nn.Module, blobs: Collection[str]) -> None:
    """torch's state_dict has a module's extra state as a pickle of anything; whoever needs it says so."""
    extra = [f"{own_name(name)}._extra_state".lstrip(".") for name, module in model.named_modules()
             if type(module).get_extra_state is not nn.Module.get_extra_state]
    missing = [key for key in extra if key not in blobs]
    if missing:
        warnings.warn("extra state of modules stays with this worker: " + first_of(missing) + "; give it as "
                      "blobs={name: bytes} to have it saved", stacklevel=4)


def put(job: Job, blobs: Mapping[str, bytes]) -> None:
    """The initial state, by rank 0. What is there already is left as it is."""
    if blobs and not job.describe().initialized:
        bring(job, blobs)


def bring(job: Job, blobs: Mapping[str, bytes]) -> None:
    for name, value in blobs.items():
        job.put(name, value, dtype="u8")


def to_write(lengths: Mapping[str, int], name: str, value: Any, plane: str) -> bytes:
    data = _bytes(name, value)
    if len(data) != lengths[name] or plane != "param":
        raise Invalid(f"blob {name}: {len(data)} bytes of plane {plane}; its {lengths[name]} bytes of plane param are "
                      "written, the length is part of the job")
    return data


def read(job: Job, name: str, timeout: float, version: Optional[Version] = None) -> bytes:
    """Of that version, or of the newest."""
    lengths = {tensor.name: tensor.shape[0] for tensor in job.tensors() if tensor.kind == "blob"}
    if name not in lengths:
        raise NotFound(f"job {job.name} has no blob {name}; there are {', '.join(lengths) or 'none'}")
    into = bytearray(lengths[name])

    def fetch(of: Version) -> None:
        job.fetch(of, name, into, dtype="u8").wait(timeout)

    if version is None:
        of_newest(job, fetch, timeout)
    else:
        fetch(version)
    return bytes(into)


def extra_state(job: Job, names: Collection[str], timeout: float, version: Version) -> Dict[str, torch.Tensor]:
    """Blobs with the key that torch's state_dict has for the extra state of a module."""
    found = {name: bytearray(read(job, name, timeout, version)) for name in names if name.endswith("_extra_state")}
    return {name: torch.frombuffer(value, dtype=torch.uint8) if value else torch.empty(0, dtype=torch.uint8)
            for name, value in found.items()}


# ==== the trainer's own ====

# Frozen parameters of a dtype that the servers do not keep (a quantized base under LoRA: uint8, int8, float8) stay the
# trainer's own. The job has their digest, as a blob: a worker whose base is another one is refused, not trained beside
# the others.

BLOB = "cairn.own_frozen"
_SHOWN = 5
_CHUNK_BYTES = 64 << 20


def own(model: nn.Module) -> List[Tuple[str, nn.Parameter]]:
    """By name, each once."""
    found: Dict[int, Tuple[str, nn.Parameter]] = {}
    for prefix, module in model.named_modules():
        for last, parameter in module._parameters.items():
            if parameter is not None and stays_here(parameter):
                found.setdefault(id(parameter), (own_name(f"{prefix}.{last}" if prefix else last), parameter))
    return sorted(found.values(), key=lambda one: one[0])


def _add(digest: "hashlib._Hash", value: torch.Tensor) -> None:
    flat = value.detach().contiguous().view(-1).view(torch.uint8)
    for first in range(0, flat.numel(), _CHUNK_BYTES):
        part = flat[first:first + _CHUNK_BYTES].cpu()
        digest.update(ctypes.string_at(part.data_ptr(), part.numel()))


def digest_of(model: nn.Module) -> Dict[str, bytes]:
    """The blob, if there are such parameters."""
    kept = own(model)
    bare = [name for name, parameter in kept if parameter.is_meta]
    if bare:
        raise Invalid(f"{', '.join(bare[:_SHOWN])} are frozen, of a dtype that the servers do not keep, and on the "
                      "meta device: give them their values before attach, nobody else has them")
    if not kept:
        return {}
    digest = hashlib.blake2b(digest_size=32)
    for name, parameter in kept:
        digest.update(f"{name} {parameter.dtype} {list(parameter.shape)}\n".encode())
        if parameter.numel() > 0:
            _add(digest, parameter.data)
    return {BLOB: digest.digest()}


def judge(job: Job, model: nn.Module, mine: Dict[str, bytes], timeout: float) -> None:
    """The job's is that of this model."""
    if BLOB in mine and read(job, BLOB, timeout) != mine[BLOB]:
        names = [name for name, _ in own(model)]
        raise Mismatch(f"job {job.name}: {first_of(names, _SHOWN)} are frozen "
                       "and stay here, and their values are others than those that the job was made with: load the "
                       "same base as the other workers, or give the job another name")
