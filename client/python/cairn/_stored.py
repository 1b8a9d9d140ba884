"""Tensors of a file of torch.save, read when they are wanted: past the page cache where the file system can, into
memory that is used again. torch maps the file and unpickles it (weights_only); where a tensor lies in the file is seen
by its address."""

from __future__ import annotations

import errno
import mmap
import os
import pickle
import re
import stat
import sys
import zipfile
from bisect import bisect_right
from pathlib import Path
from typing import Any, Dict, List, NamedTuple, Optional, Sequence, Tuple

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
