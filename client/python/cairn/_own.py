"""Frozen parameters of a dtype that the servers do not keep (a quantized base under LoRA: uint8, int8, float8) stay the
trainer's own. The job has their digest, as a blob: a worker whose base is another one is refused, not trained beside
the others."""

from __future__ import annotations

import ctypes
import hashlib
from typing import Dict, List, Tuple

import torch
from torch import nn

from . import _blobs
from ._model import stays_here
from ._wrapped import own_name
from .errors import Invalid, Mismatch
from .job import Job

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
    if BLOB in mine and _blobs.read(job, BLOB, timeout) != mine[BLOB]:
        names = [name for name, _ in own(model)]
        raise Mismatch(f"job {job.name}: {', '.join(names[:_SHOWN])}{', …' if len(names) > _SHOWN else ''} are frozen "
                       "and stay here, and their values are others than those that the job was made with: load the "
                       "same base as the other workers, or give the job another name")
