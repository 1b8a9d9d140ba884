"""Tensors of a file of torch.save, read when they are wanted: past the page cache where the file system can, into
memory that is used again. torch maps the file and unpickles it (weights_only); where a tensor lies in the file is seen
by its address."""

from __future__ import annotations

import errno
import io
import json
import mmap
import os
import pickle
import re
import stat
import subprocess
import sys
import zipfile
from bisect import bisect_right
from pathlib import Path
from typing import Any, Dict, List, Mapping, NamedTuple, Optional, Sequence, Tuple

from ._metadata import DTYPES
from .errors import Invalid


_PAGE = 4096  # what a direct read, and its memory, begins and ends with
_GAP_BYTES = 64 << 10  # what lies between two tensors is read along, up to that: torch has 200 bytes or so there


def _said(why: Exception) -> str:
    """What torch found, in one line: without its colours, and its advice to trust the file."""
    text = re.sub(r"\x1b\[[0-9;]*m", "", str(why)).strip() or type(why).__name__
    found = re.search(r"WeightsUnpickler error: ([^\n]*)", text)
    return (found[1] if found else text.splitlines()[0]).partition(" Please use")[0].rstrip(".")[:300]


def load(source: Any, what: str, **how: Any) -> Any:
    """By torch, weights_only: tensors and plain containers; a file with anything else in it is refused."""
    import torch
    try:
        return torch.load(source, map_location="cpu", weights_only=True, **how)
    except (pickle.UnpicklingError, RuntimeError, ValueError, EOFError, KeyError, AttributeError, TypeError) as why:
        raise Invalid(f"{what} is not taken: {_said(why)}. Only tensors and plain containers are read, no code is run "
                      "for what else it has") from None


class Stored:
    """A tensor that is not read yet, or, `shape` None, an object. `dtype`: torch's word, without "torch."."""

    shape: Optional[Tuple[int, ...]]
    dtype: str

    def value(self) -> Any:
        raise NotImplementedError


class Room:
    """Memory for one window at a time, in pages of its own; it grows, and is not given back between windows."""

    def __init__(self) -> None:
        self._pages = mmap.mmap(-1, _PAGE)
        self._parts: Dict[int, "Room"] = {}

    def of(self, nbytes: int) -> mmap.mmap:
        """What was read into it before is gone."""
        if len(self._pages) < nbytes:
            self._pages = mmap.mmap(-1, nbytes)  # the old one goes with the last tensor in it
        return self._pages

    def part(self, i: int) -> "Room":
        """A room beside it, for the file of that number."""
        return self._parts.setdefault(i, Room())


class _Span(NamedTuple):
    """Neighbours in the file, read at once: whole pages, of which the file has those before `wanted` at least."""

    at: int
    end: int
    wanted: int
    members: List[Tuple[int, int]]  # (which tensor, its place in the file)


class File:
    """A file of torch.save, loaded: mapped, or before torch 2.1 all of it. `saved`: what it holds."""

    def __init__(self, path: Path, saved: Any = None):
        self._path, self.saved = path, saved
        self._file = open(path, "rb", buffering=0)
        self._direct = _open_direct(path)
        self._maps = sorted(_mappings(self._file.fileno())) if _is_native(path) else []

    def _place(self, tensor: Any) -> Optional[int]:
        """Where it lies in the file; None: not as it is, or the kernel names another device than the file's."""
        size = tensor.element_size()
        if tensor.device.type != "cpu" or not tensor.is_contiguous() or tensor.is_neg() or tensor.numel() == 0:
            return None
        address = tensor.data_ptr()
        at = bisect_right(self._maps, (address, 1 << 63, 0)) - 1
        if at < 0 or address + tensor.numel() * size > self._maps[at][1]:
            return None
        place = address - self._maps[at][0] + self._maps[at][2]
        return place if place % size == 0 else None

    def read(self, tensors: Sequence[Any], room: Room) -> List[Any]:
        """Their values, in `room` as far as they are read from the file. What torch did not leave in the file, or lies
        there in a way of its own, is as it was given."""
        import torch
        spans = _spans([(i, self._place(tensor), tensor.numel() * tensor.element_size())
                        for i, tensor in enumerate(tensors)])
        into, values, begin = room.of(sum(span.end - span.at for span in spans)), list(tensors), 0
        for span in spans:
            self._read_span(memoryview(into)[begin:begin + span.end - span.at], span)
            for i, place in span.members:
                one = tensors[i]
                values[i] = torch.frombuffer(into, dtype=one.dtype, count=one.numel(),
                                             offset=begin + place - span.at).view(one.shape)
            begin += span.end - span.at
        return values

    def _read_span(self, into: memoryview, span: _Span) -> None:
        got = 0
        while span.at + got < span.wanted:
            fd = self._direct if self._direct is not None and got % _PAGE == 0 else self._file.fileno()
            try:
                count = os.preadv(fd, [into[got:]], span.at + got)
            except OSError as why:
                if why.errno == errno.EINVAL and fd == self._direct:  # it wants another alignment
                    self._close_direct()
                    continue
                raise Invalid(f"{self._path} cannot be read: {why.strerror}") from None
            if count == 0:
                raise Invalid(f"{self._path} ends before byte {span.wanted}: it is cut off")
            got += count

    def _close_direct(self) -> None:
        if self._direct is not None:
            os.close(self._direct)
            self._direct = None

    def close(self) -> None:
        self._file.close()
        self._close_direct()


def opened(path: Path) -> File:
    there = os.stat(path)
    if not stat.S_ISREG(there.st_mode):
        raise Invalid(f"{path} is no regular file")
    if there.st_size == 0:
        raise Invalid(f"{path} has 0 bytes: it was not written to its end; take an older checkpoint")
    return File(path, load(str(path), str(path), **{"mmap": True} if can_map(path) else {}))


def _is_native(path: Path) -> bool:
    """Else torch turns the bytes of what it has loaded."""
    if not zipfile.is_zipfile(path):
        return True
    with zipfile.ZipFile(path) as archive:
        names = [name for name in archive.namelist() if name.endswith("/byteorder")]
        return all(archive.read(name) == sys.byteorder.encode() for name in names)


def _open_direct(path: Path) -> Optional[int]:
    try:
        return os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_DIRECT)
    except OSError:  # not of this file system
        return None


def _mappings(fd: int) -> List[Tuple[int, int, int]]:
    """(address, end, place in the file) of what this process has mapped of it."""
    there = os.fstat(fd)
    device, inode = f"{os.major(there.st_dev):02x}:{os.minor(there.st_dev):02x}", str(there.st_ino)
    found = []
    with open("/proc/self/maps", encoding="utf-8", errors="replace") as lines:
        for line in lines:
            addresses, _, place, of, node = line.split()[:5]
            if of == device and node == inode:
                first, end = (int(word, 16) for word in addresses.split("-"))
                found.append((first, end, int(place, 16)))
    return found


def _spans(places: Sequence[Tuple[int, Optional[int], int]]) -> List[_Span]:
    """Of (which, place or None, bytes): in the file's order, neighbours together."""
    spans: List[_Span] = []
    for place, i, nbytes in sorted((place, i, nbytes) for i, place, nbytes in places if place is not None):
        at, wanted, members = place // _PAGE * _PAGE, place + nbytes, [(i, place)]
        if spans and at <= spans[-1].end + _GAP_BYTES:
            before = spans.pop()
            at, wanted, members = before.at, max(before.wanted, wanted), before.members + members
        spans.append(_Span(at, -(-wanted // _PAGE) * _PAGE, wanted, members))
    return spans


def can_map(path: Path) -> bool:
    """torch maps it when it is loaded: one since 2.1, and a file of its format since 1.6."""
    import inspect

    import torch
    return "mmap" in inspect.signature(torch.load).parameters and zipfile.is_zipfile(path)


# ==== distributed checkpoints ====

# A folder of torch's distributed checkpoint (DCP): what it holds, by key, each tensor read when it is wanted.
# .metadata is read as data, by a process of its own (_metadata.py); an item by torch.load(weights_only=True).

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


def read_dcp(folder: Path) -> Tuple[Dict[Any, Any], bool]:
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


# ==== safetensors ====

# Tensors of safetensors files: of one, of a folder's, and of the parts of tensors that Cairn's snapshots and torch's
# HuggingFaceStorageWriter keep, which DCP_SHARDING_INFO of a file describes. Read without the package of that name.

HEADER_BYTES = 100_000_000  # of the format
_DTYPES = {"F64": "float64", "F32": "float32", "F16": "float16", "BF16": "bfloat16", "I64": "int64", "I32": "int32",
           "I16": "int16", "I8": "int8", "U8": "uint8", "BOOL": "bool", "F8_E4M3": "float8_e4m3fn",
           "F8_E5M2": "float8_e5m2", "U16": "uint16", "U32": "uint32", "U64": "uint64", "C64": "complex64"}
_BYTES = {"F64": 8, "F32": 4, "F16": 2, "BF16": 2, "I64": 8, "I32": 4, "I16": 2, "I8": 1, "U8": 1, "BOOL": 1,
          "F8_E4M3": 1, "F8_E5M2": 1, "U16": 2, "U32": 4, "U64": 8, "C64": 8}


class _Piece:
    """A box of a tensor, in one file."""

    def __init__(self, path: Path, at: int, dtype: str, offsets: Sequence[int], sizes: Sequence[int]):
        self.path, self.at, self.dtype, self.offsets, self.sizes = path, at, dtype, tuple(offsets), tuple(sizes)

    def read(self) -> Any:
        import torch
        if not hasattr(torch, _DTYPES[self.dtype]):
            raise Invalid(f"{self.path}: a tensor is of {self.dtype}, which this torch does not have")
        if product(self.sizes) == 0:
            return torch.empty(self.sizes, dtype=getattr(torch, _DTYPES[self.dtype]))
        data = bytearray(product(self.sizes) * _BYTES[self.dtype])
        with open(self.path, "rb", buffering=0) as file:
            got = 0
            while got < len(data):
                count = os.preadv(file.fileno(), [memoryview(data)[got:]], self.at + got)
                if count == 0:
                    raise Invalid(f"{self.path} ends before byte {self.at + len(data)}: it is cut off")
                got += count
        return torch.frombuffer(data, dtype=getattr(torch, _DTYPES[self.dtype])).view(self.sizes)


class _Tensor(Stored):
    def __init__(self, key: str):
        self._key, self._pieces = key, []  # type: Tuple[str, List[_Piece]]

    def add(self, piece: _Piece) -> None:
        if self._pieces and piece.dtype != self._pieces[0].dtype:
            raise Invalid(f"{piece.path}: {self._key} is {piece.dtype}, another part of it {self._pieces[0].dtype}")
        self._pieces.append(piece)
        ends = zip(*[[o + s for o, s in zip(one.offsets, one.sizes)] for one in self._pieces])
        self.shape, self.dtype = tuple(map(max, ends)), _DTYPES[piece.dtype]

    def value(self) -> Any:
        import torch
        cover(self._key, self.shape, [(piece.offsets, piece.sizes) for piece in self._pieces])
        if len(self._pieces) == 1:
            return self._pieces[0].read()
        whole = torch.empty(self.shape, dtype=getattr(torch, self.dtype))
        for piece in self._pieces:
            whole[tuple(slice(o, o + s) for o, s in zip(piece.offsets, piece.sizes))] = piece.read()
        return whole


def _header(path: Path) -> Tuple[Mapping[str, Any], int, int]:
    """Its JSON, where the data begins, and how many bytes these are."""
    with open(os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK), "rb") as file:
        there = os.fstat(file.fileno())
        if not stat.S_ISREG(there.st_mode):
            raise Invalid(f"{path} is no regular file")
        length = int.from_bytes(file.read(8), "little")
        if there.st_size < 8 or length > min(HEADER_BYTES, there.st_size - 8):
            raise Invalid(f"{path} is no safetensors file, or cut off: its header would be {length} bytes")
        try:
            header = json.loads(file.read(length).decode())
        except (ValueError, RecursionError):
            raise Invalid(f"{path} is no safetensors file: its header is no JSON") from None
    if not isinstance(header, dict):
        raise Invalid(f"{path} is no safetensors file: its header is no JSON object")
    return header, 8 + length, there.st_size - 8 - length


def _is_counts(value: Any, length: int) -> bool:
    return (isinstance(value, list) and len(value) == length
            and all(type(n) is int and 0 <= n < 1 << 48 for n in value))


def _add(path: Path, tensors: Dict[str, Any]) -> None:
    header, begin, room = _header(path)
    try:
        boxes = json.loads(dict(header.get("__metadata__") or {}).get("DCP_SHARDING_INFO", "{}"))
        for key, entry in header.items():
            if key == "__metadata__":
                continue
            dtype, shape, places = entry["dtype"], entry["shape"], entry["data_offsets"]
            offsets = boxes[key]["saved_offsets"] if boxes else [0] * len(shape)
            if (dtype not in _BYTES or not _is_counts(shape, len(shape)) or not _is_counts(offsets, len(shape))
                    or not _is_counts(places, 2) or places[1] > room
                    or places[1] - places[0] != product(shape) * _BYTES[dtype]):
                raise Invalid(f"{path}: the header's entry of {key[:80]!r} is wrong, or of a dtype that is not read")
            tensors.setdefault(key, _Tensor(key)).add(_Piece(path, begin + places[0], dtype, offsets, shape))
    except (KeyError, TypeError, AttributeError, ValueError) as why:
        if isinstance(why, Invalid):
            raise
        raise Invalid(f"{path} is no safetensors file: its header describes no tensors "
                      f"({type(why).__name__})") from None


def read_safetensors(paths: Sequence[Path]) -> Dict[str, Any]:
    """{name: what is to be read}, of all files together."""
    tensors: Dict[str, Any] = {}
    for path in paths:
        _add(path, tensors)
    return tensors
