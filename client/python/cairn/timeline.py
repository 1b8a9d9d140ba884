"""What a trainer does when: its pushes against its own phases, as a Chrome trace (chrome://tracing, Perfetto)."""

from __future__ import annotations

import contextlib
import json
import os
import select
import threading
import time
from typing import Any, Dict, Iterator, List, NamedTuple, Tuple

from .errors import Invalid
from .session import Operation


class Span(NamedTuple):
    """Seconds of time.monotonic()."""

    name: str
    begin: float
    end: float


class Timeline:
    """Records an attached model in a with block: each push from the hook that gave it until its memory is the
    trainer's again (which is when the shards have added it up), and what `span` is put around. A thread of its own
    reads the session's event_fd meanwhile: one timeline a session."""

    def __init__(self, attached: Any):
        self._attached, self._session = attached, attached.job._session
        self._begun: List[Tuple[str, float, Operation]] = []  # pushes under way
        self._lock = threading.Lock()  # of _begun
        self.pushes: List[Span] = []
        self.spans: List[Span] = []

    def __enter__(self) -> "Timeline":
        if self._session._timeline is not None:
            raise Invalid("this session is recorded already; one timeline at a time")
        self._events = os.dup(self._session.event_fd)  # ours, should the session be closed meanwhile
        self._stop, self._stopped = os.pipe()
        self._session._timeline = self._attached._timeline = self
        self._thread = threading.Thread(target=self._watch, name="cairn timeline", daemon=True)
        self._thread.start()
        return self

    def __exit__(self, *_: Any) -> None:
        self._attached._timeline = self._session._timeline = None
        os.close(self._stopped)
        self._thread.join()
        os.close(self._stop), os.close(self._events)
        self._look()
        self._begun = []  # those of a round that never ended are not shown

    @contextlib.contextmanager
    def span(self, name: str) -> Iterator[None]:
        """A phase of the trainer: with timeline.span("backward"): loss.backward()"""
        begin = time.monotonic()
        try:
            yield
        finally:
            self.spans.append(Span(name, begin, time.monotonic()))

    def pushed(self, tensor: str, begin: float, operation: Operation) -> None:
        with self._lock:
            self._begun.append((tensor, begin, operation))

    def _watch(self) -> None:
        while True:
            ready, _, _ = select.select([self._events, self._stop], [], [])
            if self._stop in ready:
                return
            with contextlib.suppress(BlockingIOError):
                os.read(self._events, 8)
            self._look()

    def _look(self) -> None:
        now, left = time.monotonic(), []
        with self._lock:
            for tensor, begin, operation in self._begun:
                if operation.done():
                    self.pushes.append(Span(tensor, begin, now))
                else:
                    left.append((tensor, begin, operation))
            self._begun = left

    # ---- what it shows ----

    def overlap(self, name: str = "backward") -> float:
        """The fraction of the time in which a push was under way that lies within spans of the name; 0 without any."""
        pushes, spans = _union(self.pushes), _union([one for one in self.spans if one.name == name])
        whole = sum(end - begin for begin, end in pushes)
        both = sum(max(0.0, min(end, to) - max(begin, since)) for begin, end in pushes for since, to in spans)
        return both / whole if whole > 0 else 0.0

    def events(self, process: int = 0) -> List[Dict[str, Any]]:
        """Of the trace event format, times in microseconds: a row for each name of a span, and as many as needed for
        pushes that are under way at once."""
        zero = min((one.begin for one in self.pushes + self.spans), default=0.0)
        rows = {name: i for i, name in enumerate(dict.fromkeys(one.name for one in self.spans))}
        made = [{"name": "process_name", "ph": "M", "pid": process, "args": {"name": f"worker {process}"}}]
        made += [_event(one.name, one, process, rows[one.name], zero) for one in self.spans]
        busy: List[float] = []  # until when, of each row
        for push in sorted(self.pushes, key=lambda one: one.begin):
            row = next((i for i, until in enumerate(busy) if until <= push.begin), len(busy))
            busy[row:row + 1] = [push.end]
            made.append(_event(f"push {push.name}", push, process, len(rows) + row, zero))
        return made

    def write(self, path: str, process: int = 0) -> None:
        with open(path, "w", encoding="utf-8") as file:
            json.dump({"traceEvents": self.events(process), "displayTimeUnit": "ms"}, file)


def _union(spans: List[Span]) -> List[Tuple[float, float]]:
    made: List[Tuple[float, float]] = []
    for begin, end in sorted((one.begin, one.end) for one in spans):
        if made and begin <= made[-1][1]:
            made[-1] = (made[-1][0], max(made[-1][1], end))
        else:
            made.append((begin, end))
    return made


def _event(name: str, span: Span, process: int, row: int, zero: float) -> Dict[str, Any]:
    return {"name": name, "ph": "X", "pid": process, "tid": row, "ts": round((span.begin - zero) * 1e6, 3),
            "dur": round((span.end - span.begin) * 1e6, 3)}
