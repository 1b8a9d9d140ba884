"""Where a buffer's bytes are: torch tensors of the host or of a card, numpy arrays, anything with the buffer protocol.

Nothing here imports torch or numpy. What is returned keeps the object alive, so that it can be on loan.
"""

from __future__ import annotations

import ctypes
import sys
from typing import Any, Optional, Tuple

from . import _c
from .errors import Invalid

_SIMPLE, _WRITABLE = 0, 1


class _PyBuffer(ctypes.Structure):  # Py_buffer, stable since Python 3.3
    _fields_ = [("buf", ctypes.c_void_p), ("obj", ctypes.c_void_p), ("len", ctypes.c_ssize_t),
                ("itemsize", ctypes.c_ssize_t), ("readonly", ctypes.c_int), ("ndim", ctypes.c_int),
                ("format", ctypes.c_char_p), ("shape", ctypes.c_void_p), ("strides", ctypes.c_void_p),
                ("suboffsets", ctypes.c_void_p), ("internal", ctypes.c_void_p)]


_get = ctypes.pythonapi.PyObject_GetBuffer
_get.argtypes = [ctypes.py_object, ctypes.POINTER(_PyBuffer), ctypes.c_int]
_get.restype = ctypes.c_int  # -1: with an exception set, which ctypes raises
_release = ctypes.pythonapi.PyBuffer_Release
_release.argtypes = [ctypes.POINTER(_PyBuffer)]
_release.restype = None


def is_apart(tensor: Any) -> bool:
    """No two elements of the tensor share memory, for sure: it may be written to."""
    spanned = 1
    for stride, extent in sorted((s, n) for s, n in zip(tensor.stride(), tensor.shape) if n > 1):
        if stride < spanned:
            return False
        spanned += (extent - 1) * stride
    return True


def can_lend(tensor: Any) -> bool:
    """A dense torch tensor of the host or a card, or one whose strides say how it lies: not all of them 0."""
    return tensor.device.type in ("cpu", "cuda") and (
        tensor.is_contiguous() or any(s > 0 for s, n in zip(tensor.stride(), tensor.shape) if n > 1))


def stream_now(device: Any) -> int:
    """The stream that this thread gives its work on a card."""
    return int(sys.modules["torch"].cuda.current_stream(device).cuda_stream)


class Memory:
    """`address` of the `nbytes` bytes of `owner`, valid as long as this object lives. They are dense, or `strides`
    says how they lie, elements for each dimension of `shape`; `span`: bytes from the first to behind the last one.
    `device` as cairn_mem has it; of a card `stream` is torch's at this time: what it has is before anything that the
    library does with the memory."""

    _view: Optional[_PyBuffer] = None  # here, for __del__ of one that was never made

    def __init__(self, owner: Any, writable: bool):
        self.owner = owner
        self.strides: Optional[Tuple[int, ...]] = None
        self.shape: Tuple[int, ...] = ()
        self.device = 0
        self.stream: Optional[int] = None
        if hasattr(owner, "data_ptr"):
            self._of_tensor(owner)
        else:
            self._of_buffer(owner, writable)

    def _of_tensor(self, tensor: Any) -> None:
        if tensor.device.type not in ("cpu", "cuda"):
            raise Invalid(f"a tensor on {tensor.device} cannot be lent: the host and NVIDIA cards are known; give its "
                          ".cpu()")
        if tensor.device.type == "cuda":
            self.device, self.stream = _c.gpu(tensor.device.index), stream_now(tensor.device)
        if not can_lend(tensor):
            raise Invalid("the tensor is one element, expanded; give its .contiguous()")
        if not tensor.is_contiguous():
            self.strides, self.shape = tuple(tensor.stride()), tuple(tensor.shape)
        self.address = tensor.data_ptr()
        self.nbytes = self.span = tensor.numel() * tensor.element_size()
        if self.strides is not None and self.nbytes > 0:
            last = sum((n - 1) * stride for n, stride in zip(self.shape, self.strides))
            self.span = (last + 1) * tensor.element_size()

    def _of_buffer(self, owner: Any, writable: bool) -> None:
        view = _PyBuffer()
        try:
            _get(owner, ctypes.byref(view), _WRITABLE if writable else _SIMPLE)
        except (BufferError, TypeError, ValueError) as error:
            raise Invalid(f"{type(owner).__name__} is not usable here: {error}") from None
        self._view = view
        self.address = view.buf or 0
        self.nbytes = self.span = view.len

    def __del__(self) -> None:
        if self._view is not None:
            _release(ctypes.byref(self._view))
            self._view = None
