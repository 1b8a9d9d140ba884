"""Tensors on NVIDIA cards: a stream beside the trainer's own, and memory of the library as a tensor.

What is computed on a card is ordered by events, and no call here waits for a stream but `settle`:

    the trainer's stream   backward of a layer ─┐        ┌─ backward of the next one ...
    the stream beside it                        └─ copy of the gradient ─ push

The library reads a buffer behind what its stream has at the call (cairn.h, cairn_mem.stream), and an operation that has
ended is over on the card, too: whoever waits for a fetch may give any stream what uses it.
"""

from __future__ import annotations

import contextlib
from typing import Any, Dict, Iterator

import torch

_beside: Dict[torch.device, Any] = {}  # streams


class _Address:
    """What torch takes as memory of a card; its tensors keep this alive, and so `keeps`."""

    def __init__(self, address: int, nbytes: int, keeps: Any):
        self.keeps = keeps
        self.__cuda_array_interface__ = {"shape": (nbytes,), "typestr": "|u1", "data": (address, False),
                                         "strides": None, "version": 2}  # bytes: it knows no bfloat16


def tensor_at(address: int, nbytes: int, device: torch.device, keeps: Any = None) -> torch.Tensor:
    """The bytes there, on that card, as uint8."""
    return torch.as_tensor(_Address(address, nbytes, keeps), device=device)


@contextlib.contextmanager
def beside(device: torch.device, *read: torch.Tensor) -> Iterator[None]:
    """Inside, a card's stream is one beside the trainer's, behind all that the trainer's has by now. The memory of
    `read` is given to nobody else before what is queued inside has read it. On the host this is nothing."""
    if device.type != "cuda":
        yield
        return
    side = _beside.get(device)
    if side is None:
        side = _beside.setdefault(device, torch.cuda.Stream(device))
    side.wait_stream(torch.cuda.current_stream(device))
    with torch.cuda.stream(side):
        yield
    for tensor in read:
        tensor.record_stream(side)


def settle(device: torch.device) -> None:
    """Waits until what was queued beside is done: memory that it writes to is about to go."""
    if device in _beside:
        _beside[device].synchronize()


def settle_passes(device: torch.device) -> None:
    """The same of the trainer's stream, which reads memory that is about to go."""
    if device.type == "cuda":
        torch.cuda.current_stream(device).synchronize()
