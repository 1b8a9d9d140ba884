"""What a checkpoint has, into a job, window by window: parameters as its initial state, where no shard makes that, and
all else by writes. The reader is ahead of what is being written by ROOMS - 1 windows, and begins before the job is
made."""

from __future__ import annotations

from collections import deque
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from typing import Any, Callable, Container, Deque, Dict, Iterator, List, Sequence, Set, Tuple

from ._stored import Room
from .job import Job
from .memory import can_lend

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
    """`read`: the values of a window's items, f32, in a room where they fit there. `first`: windows of parameters;
    `rest`: what is written in any case. `puts`: the job's parameters come from here, and not from its shards."""

    def __init__(self, read: Callable[[Sequence[Item], Room], Values], first: Sequence[Sequence[Item]],
                 rest: Sequence[Sequence[Item]], puts: bool, timeout: float):
        self._read, self._puts, self._timeout = read, puts, timeout
        self._first = first
        self._waiting: Deque[Sequence[Item]] = deque([*first, *rest])
        self._coming: Deque[Tuple[Room, "Future[Values]"]] = deque()
        self._reader = ThreadPoolExecutor(1, "cairn-import")
        self.write_count = len(rest) + (0 if puts else len(first))  # unless another one's import ended halfway

    def begin(self) -> None:
        """Reading."""
        for _ in range(ROOMS):
            self._begin(Room())

    def _begin(self, room: Room) -> None:
        if self._waiting:
            self._coming.append((room, self._reader.submit(self._read, self._waiting.popleft(), room)))

    @contextmanager
    def _next(self) -> Iterator[Values]:
        """The next window: its room is read into again behind the block."""
        room, coming = self._coming.popleft()
        yield coming.result()
        del coming
        self._begin(room)

    def put(self, job: Job) -> Set[str]:
        """Parameters, as the initial state of a job that has none. Returns their names."""
        names: Set[str] = set()
        for _ in self._first if self._puts else ():
            with self._next() as window:
                putting = [job.putting(name, value if can_lend(value) else value.contiguous())
                           for name, value in window["param"].items()]
                for operation in putting:
                    operation.wait(self._timeout)
                names.update(window["param"])
        return names

    def pour(self, write: Callable[[Values], Any], names: Container[str]) -> None:
        """Writes what is left, of these tensors."""
        while self._coming:
            with self._next() as window:
                write({plane: {name: value for name, value in values.items() if name in names}
                       for plane, values in window.items()})

    def close(self) -> None:
        """The reader ends behind what it reads now."""
        self._waiting.clear()
        for _, coming in self._coming:
            coming.cancel()
        self._reader.shutdown()
