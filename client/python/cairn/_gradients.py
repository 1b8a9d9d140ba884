"""Where a gradient is until it is pushed: memory of cairn_alloc, which the shards of this host map and read from where
it lies. What autograd made is copied there once, by its hook, and is free again at once.

Why autograd does not write there itself. It adds to a .grad that is there, so a view of this memory would have to be
filled with -0.0 before (0 + -0 is 0): two passes over it more than copying what autograd hands over without a copy when
.grad is None. Measured, four Linear(2048, 2048), 4 rows, a quiet machine: a backward pass with a view takes 1.11 (torch
1.13) and 1.43 (2.15) of one that copies; with 64 rows of eight Linear(1024, 1024) 1.02. And `.grad` never shows this
memory, so that nothing of the trainer's outlives it.

A place is not written to while a push of it is under way. With several backward passes a step there are two places
each; if both are on loan, the gradient is pushed from where autograd left it, which the library copies.
"""

from __future__ import annotations

import ctypes
from typing import Dict, List, Optional, Sequence

import torch

from . import _c
from ._model import Slot
from .session import Operation, Session, check

_ALIGN = 64
_DTYPES = {torch.float16: torch.float32}  # widened, since it is not pushed


class Place:
    """For one gradient of a parameter."""

    def __init__(self, tensor: torch.Tensor):
        self.tensor = tensor  # dense
        self.push: Optional[Operation] = None

    def is_free(self) -> bool:
        """Asks, and ends the operation of a push that is over."""
        return self.push is None or self.push.done()


class Gradients:
    """`copies` places for each trained parameter of the host; nothing of it is used after close()."""

    def __init__(self, session: Session, slots: Sequence[Slot], copies: int):
        self._session, self._address = session, 0
        self._places: Dict[Slot, List[Place]] = {}
        self.nbytes = sum(_room(slot) for slot in slots) * copies
        if self.nbytes == 0:
            return
        out = ctypes.c_void_p()
        check(_c.lib().cairn_alloc(session._living(), self.nbytes, -1, ctypes.byref(out)))
        self._address = out.value or 0
        memory, at = (ctypes.c_char * self.nbytes).from_address(self._address), 0
        for slot in list(slots) * copies:
            if _room(slot) > 0:
                self._places.setdefault(slot, []).append(Place(_view(memory, at, slot)))
                at += _room(slot)

    def place(self, slot: Slot, gradient: torch.Tensor) -> Optional[Place]:
        """A free place of the slot, with a copy of the gradient. None: there is none, push the gradient itself."""
        with self._session._writes() as is_open:  # the memory goes when the session is closed, by whichever thread
            if self._address == 0 or not is_open:
                return None
            free = next((one for one in self._places.get(slot, ()) if one.is_free()), None)
            if free is not None:
                with torch.no_grad():
                    free.tensor.copy_(gradient.detach())
            return free

    def close(self) -> None:
        """Gives the memory back; what is still on loan goes with the session. Twice is once."""
        with self._session._memory_lock:
            address, self._address, self.nbytes = self._address, 0, 0
            for place in [one for places in self._places.values() for one in places]:
                place.is_free()
            self._places = {}
            is_safe = not self._session._is_written_to  # else this is a signal handler amid a copy: with the session
            if address != 0 and is_safe and not self._session.closed:
                _c.lib().cairn_free(self._session._living(), address)


def _dtype(slot: Slot) -> torch.dtype:
    return _DTYPES.get(slot.parameter.dtype, slot.parameter.dtype)


def _room(slot: Slot) -> int:
    if not slot.trained or slot.parameter.device.type != "cpu":
        return 0
    nbytes = slot.parameter.numel() * torch.empty((), dtype=_dtype(slot)).element_size()
    return -(-nbytes // _ALIGN) * _ALIGN


def _view(memory: ctypes.Array, at: int, slot: Slot) -> torch.Tensor:
    shape = slot.parameter.shape
    return torch.frombuffer(memory, dtype=_dtype(slot), count=shape.numel(), offset=at).view(shape)
