"""What a checkpoint has, into a job that has no state yet, window by window: its parameters, buffers and moments are
the initial state, which is there as a whole or not at all. The reader is ahead of what is being put by ROOMS - 1
windows, and begins before the job is made."""

from __future__ import annotations

from collections import deque
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any, Callable, Deque, Dict, List, Sequence, Tuple

from ._stored import Room
from .job import Job
from .memory import can_lend
from .operation import Operation, wait_all

WINDOW_BYTES = 64 << 20  # of f32; a tensor that is larger is a window of its own
ROOMS = 2

Item = Tuple[str, str, int]  # a tensor, its plane, bytes
Values = Dict[str, Dict[str, Any]]  # {plane: {tensor: its values}}


def windows_of(items: Sequence[Item]) -> List[List[Item]]:
    """In order; a tensor's planes may lie in two."""
    windows: List[List[Item]] = []
    room = 0
    for item in items:
        if not windows or item[2] > room:
            windows.append([])
            room = WINDOW_BYTES
        windows[-1].append(item)
        room -= item[2]
    return windows


class Pouring:
    """`read`: the values of a window's items, f32, in a room where they fit there. `names`: the tensors whose values
    come from here, whatever the model or the job's spec has of them."""

    def __init__(self, read: Callable[[Sequence[Item], Room], Values], items: Sequence[Item], timeout: float):
        self._read, self._timeout = read, timeout
        self.names = frozenset(name for name, plane, _ in items if plane == "param")
        self._waiting: Deque[Sequence[Item]] = deque(windows_of(items))
        self._coming: Deque[Tuple[Room, "Future[Values]"]] = deque()
        self._reader = ThreadPoolExecutor(1, "cairn-import")
        self.is_done = False  # this worker has put all of it

    def begin(self) -> None:
        """Reading."""
        for _ in range(ROOMS):
            self._begin(Room())

    def _begin(self, room: Room) -> None:
        if self._waiting:
            self._coming.append((room, self._reader.submit(self._read, self._waiting.popleft(), room)))

    def put(self, job: Job) -> None:
        """All of it, by rank 0: the initial state, as far as the job has tensors of these names."""
        while self._coming:
            room, coming = self._coming.popleft()
            _put(job, coming.result(), self._timeout)
            del coming
            self._begin(room)
        self.is_done = True

    def close(self) -> None:
        """The reader ends behind what it reads now."""
        self._waiting.clear()
        for _, coming in self._coming:
            coming.cancel()
        self._reader.shutdown()


def _put(job: Job, window: Values, timeout: float) -> None:
    """As far as the job has these tensors. Behind it nothing of the window is on loan."""
    begun: List[Operation] = []
    try:
        for plane, values in window.items():
            for name, value in values.items():
                if name in job._tensors:
                    begun.append(job.putting(name, value if can_lend(value) else value.contiguous(), plane))
    finally:
        wait_all(begun, timeout)
