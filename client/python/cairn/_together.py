"""Small gradients of the host are pushed together: each by itself would cost more than its bytes do. Hooks collect them
until there are so many, or until the backward pass is over; then they go as one list, out of one range of the shared
memory. Large ones go at once, as they come, so that pushes and the backward pass still overlap."""

from __future__ import annotations

from typing import List, Tuple

import torch

from ._model import Slot

SMALL_BYTES = 64 << 10  # of a gradient that waits for others
_BYTES, _COUNT = 1 << 20, 512  # then they go
_DTYPES = (torch.float32, torch.bfloat16)  # as the library takes them

Waiting = List[Tuple[Slot, torch.Tensor]]


class Together:
    """Those that wait."""

    def __init__(self) -> None:
        self._waiting: Waiting = []
        self._nbytes = 0
        self._has_begun = False

    @staticmethod
    def takes(gradient: torch.Tensor) -> bool:
        return (gradient.device.type == "cpu" and gradient.dtype in _DTYPES and gradient.is_contiguous() and
                0 < gradient.numel() * gradient.element_size() <= SMALL_BYTES)

    def add(self, slot: Slot, gradient: torch.Tensor) -> bool:
        """Whether it is time for them to go."""
        self._waiting.append((slot, gradient.detach()))
        self._nbytes += gradient.numel() * gradient.element_size()
        return self._nbytes >= _BYTES or len(self._waiting) >= _COUNT

    def begins(self) -> bool:
        """Once for those of a backward pass: somebody waits."""
        begins, self._has_begun = bool(self._waiting) and not self._has_begun, self._has_begun or bool(self._waiting)
        return begins

    def take(self) -> Waiting:
        waiting, self._waiting, self._nbytes = self._waiting, [], 0
        return waiting

    def end(self) -> None:
        """Of the backward pass."""
        self._has_begun = False
