"""Tensors of safetensors files: of one, of a folder's, and of the parts of tensors that Cairn's snapshots and torch's
HuggingFaceStorageWriter keep, which DCP_SHARDING_INFO of a file describes. Read without the package of that name."""

from __future__ import annotations

import json
import os
import stat
from pathlib import Path
from typing import Any, Dict, List, Mapping, Sequence, Tuple

from ._dcp import cover, product
from ._stored import Stored
from .errors import Invalid

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


def read(paths: Sequence[Path]) -> Dict[str, Any]:
    """{name: what is to be read}, of all files together."""
    tensors: Dict[str, Any] = {}
    for path in paths:
        _add(path, tensors)
    return tensors
