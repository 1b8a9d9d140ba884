"""A folder of torch's distributed checkpoint (DCP): what it holds, by key, each tensor read when it is wanted.
.metadata is read as data, by a process of its own (_metadata.py); an item by torch.load(weights_only=True)."""

from __future__ import annotations

import io
import json
import os
import stat
import subprocess
import sys
from pathlib import Path
from typing import Any, Dict, List, Mapping, Optional, Sequence, Tuple

from ._metadata import DTYPES
from ._stored import Stored, load
from .errors import Invalid

METADATA_S = 180  # that reading .metadata may take
COMPARED_MAX = 20_000_000  # pairs of chunks of one tensor, whether they overlap
_DTYPE = {ours: torchs for torchs, ours in DTYPES.items()}


def _catalog(folder: Path) -> Dict[str, Any]:
    program = Path(__file__).with_name("_metadata.py")
    try:
        ran = subprocess.run([sys.executable, "-I", str(program), str(folder / ".metadata")], capture_output=True,
                             timeout=METADATA_S, stdin=subprocess.DEVNULL, text=True, errors="replace")
    except subprocess.TimeoutExpired:
        raise Invalid(f"{folder}/.metadata: reading it took more than {METADATA_S} s") from None
    if ran.returncode < 0:
        raise Invalid(f"{folder}/.metadata: reading it was ended by signal {-ran.returncode}: it takes more time or "
                      "memory than any such file needs")
    if ran.returncode != 0:
        said = ran.stderr.strip().splitlines()
        raise Invalid(f"{folder}/.metadata: {said[-1] if said else f'reading it ended with {ran.returncode}'}")
    return json.loads(ran.stdout)


class Part(io.RawIOBase):
    """A part of a file as a file of its own: torch reads from it into the tensor's memory."""

    _fd = -1

    def __init__(self, path: Path, at: int, count: int):
        self._fd = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC | os.O_NONBLOCK)
        self._at, self._count, self._next = at, count, 0
        there = os.fstat(self._fd)
        if not stat.S_ISREG(there.st_mode) or there.st_size < at + count:
            self.close()
            raise Invalid(f"{path} ends before byte {at + count}: it is cut off" if stat.S_ISREG(there.st_mode) else
                          f"{path} is no regular file")
        os.posix_fadvise(self._fd, at, count, os.POSIX_FADV_WILLNEED)

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def seek(self, offset: int, whence: int = io.SEEK_SET) -> int:
        self._next = max(0, offset + {io.SEEK_SET: 0, io.SEEK_CUR: self._next, io.SEEK_END: self._count}[whence])
        return self._next

    def readinto(self, into: Any) -> int:
        left = max(0, self._count - self._next)
        got = os.preadv(self._fd, [memoryview(into).cast("B")[:left]], self._at + self._next)
        self._next += got
        return got

    def close(self) -> None:
        if self._fd >= 0 and not self.closed:
            os.close(self._fd)
        super().close()


class _Entry(Stored):
    """A tensor of it, or, without a shape, an object."""

    def __init__(self, folder: Path, key: str, entry: Mapping[str, Any]):
        self._folder, self._key, self._chunks = folder, key, entry["chunks"]
        self.shape = tuple(entry["shape"]) if "shape" in entry else None
        self.dtype = _DTYPE.get(entry.get("dtype", ""), entry.get("dtype", ""))

    def _item(self, chunk: Mapping[str, Any]) -> Any:
        path = self._folder / chunk["file"]
        try:
            with io.BufferedReader(Part(path, chunk["at"], chunk["bytes"])) as item:
                return load(item, f"{self._key} of {self._folder}")
        except OSError as why:
            raise Invalid(f"{path} cannot be read: {why.strerror}; .metadata says that {self._key} lies "
                          "there") from None

    def _part(self, chunk: Mapping[str, Any]) -> Any:
        import torch
        part = self._item(chunk)
        if not isinstance(part, torch.Tensor):
            raise Invalid(f"{self._key}: what lies where .metadata says that a chunk does is a {type(part).__name__} "
                          "and no tensor")
        if part.layout != torch.strided or part.device.type != "cpu":
            raise Invalid(f"{self._key}: a chunk is stored without its numbers ({part.layout}, {part.device})")
        if str(part.dtype) != f"torch.{self.dtype}":
            raise Invalid(f"{self._key}: a chunk is of {part.dtype}, .metadata says {self.dtype}")
        if list(part.shape) != chunk["sizes"]:
            raise Invalid(f"{self._key}: a chunk is of {list(part.shape)}, .metadata says {chunk['sizes']}")
        return part

    def value(self) -> Any:
        """Whole: its chunks must cover it exactly."""
        import torch
        if self.shape is None:
            return self._item(self._chunks[0])
        cover(self._key, self.shape, [(chunk["offsets"], chunk["sizes"]) for chunk in self._chunks])
        if len(self._chunks) == 1:
            return self._part(self._chunks[0])
        try:
            whole = torch.empty(self.shape, dtype=getattr(torch, self.dtype))
        except (RuntimeError, MemoryError, AttributeError):
            raise Invalid(f"{self._key}: .metadata says that it is {list(self.shape)} of {self.dtype}; there is no "
                          "memory for that") from None
        for chunk in self._chunks:
            place = tuple(slice(o, o + s) for o, s in zip(chunk["offsets"], chunk["sizes"]))
            whole[place] = self._part(chunk)
        return whole


Box = Tuple[Sequence[int], Sequence[int]]  # offsets, sizes


def _overlap(a: Box, b: Box) -> bool:
    return all(at < there + extent and there < at + size for at, size, there, extent in zip(a[0], a[1], b[0], b[1]))


def cover(key: str, shape: Sequence[int], boxes: Sequence[Box]) -> None:
    """Invalid unless the boxes lie in a tensor of this shape and each element of it in exactly one of them."""
    elems = 0
    for offsets, sizes in boxes:
        if any(o + s > dim for o, s, dim in zip(offsets, sizes, shape)):
            raise Invalid(f"{key}: a chunk at {list(offsets)} lies outside of {list(shape)}")
        elems += product(sizes)
    if elems != product(shape):
        raise Invalid(f"{key}: its chunks have {elems} elements, it has {product(shape)}")
    live: List[Box] = []  # those that reach the row where the next one begins
    compared = 0
    for box in sorted((box for box in boxes if product(box[1]) > 0), key=lambda box: list(box[0])):
        live = [one for one in live if not one[0] or one[0][0] + one[1][0] > box[0][0]]
        compared += len(live)
        if compared > COMPARED_MAX:
            raise Invalid(f"{key}: its {len(boxes)} chunks lie so that nobody can tell in time whether they overlap")
        for one in live:
            if _overlap(one, box):
                raise Invalid(f"{key}: its chunks at {list(one[0])} and {list(box[0])} overlap, so others lack")
        live.append(box)


def product(shape: Sequence[int]) -> int:
    elems = 1
    for dim in shape:
        elems *= dim
    return elems


def read(folder: Path) -> Tuple[Dict[Any, Any], bool]:
    """What it holds, as a tree, and whether that is flat: such a folder does not say what its keys were before."""
    tree: Dict[Any, Any] = {}
    entries = _catalog(folder)
    for key, entry in entries.items():
        at = tree
        *parents, last = entry["path"]
        for parent in parents:
            at = at.setdefault(parent, {})
            if not isinstance(at, dict):
                raise Invalid(f"{folder}/.metadata: {key[:80]} lies in what is no dict")
        if last in at:
            raise Invalid(f"{folder}/.metadata: {key[:80]} is there twice")
        at[last] = _Entry(folder, key, entry)
    return tree, all(len(entry["path"]) == 1 for entry in entries.values())
