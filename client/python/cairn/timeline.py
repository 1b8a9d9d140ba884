"""What a trainer does when: pushes and fetches against its phases, as a Chrome trace (chrome://tracing, Perfetto)."""

from __future__ import annotations

import contextlib
import json
import os
import select
import threading
import time
from typing import Any, Dict, Iterator, List, NamedTuple, Tuple

from .errors import Invalid
from .operation import Operation


class Span(NamedTuple):
    """Seconds of time.monotonic()."""

    name: str
    begin: float
    end: float


class Use(NamedTuple):
    """A unit of stage 3 in its forward or backward pass: `phase` says which."""

    phase: str
    name: str
    begin: float
    end: float


class _Begun(NamedTuple):
    """Under way, until all operations have ended."""

    name: str
    begin: float
    operations: List[Operation]
    ended: List[Span]  # where it is noted then


class Timeline:
    """Records an attached model in a with block: each push from the hook that gave it until its memory is the
    trainer's again (which is when the shards have added it up); of stage 3 each fetch of a unit, from when it was asked
    for, and each use of one; and what `span` is put around. A thread of its own reads the session's event_fd
    meanwhile: one timeline a session."""

    def __init__(self, attached: Any):
        self._attached, self._session = attached, attached.job._session
        self._begun: List[_Begun] = []
        self._lock = threading.Lock()  # of _begun
        self.pushes: List[Span] = []
        self.fetches: List[Span] = []
        self.uses: List[Use] = []
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
        self._note(_Begun(tensor, begin, [operation], self.pushes))

    def fetching(self, unit: str, begin: float, operations: List[Operation]) -> None:
        self._note(_Begun(unit, begin, operations, self.fetches))

    def used(self, phase: str, unit: str, begin: float, end: float) -> None:
        self.uses.append(Use(phase, unit, begin, end))

    def _note(self, begun: _Begun) -> None:
        with self._lock:
            self._begun.append(begun)

    def _watch(self) -> None:
        while True:
            ready, _, _ = select.select([self._events, self._stop], [], [])
            if self._stop in ready:
                return
            with contextlib.suppress(BlockingIOError):
                os.read(self._events, 8)
            self._look()

    def _look(self) -> None:
        with self._lock:
            left = []
            for one in self._begun:
                if all(operation.done() for operation in one.operations):
                    # what is lent already was there before it was asked for: a span of no length
                    end = max([one.begin] + [operation.ended or one.begin for operation in one.operations])
                    one.ended.append(Span(one.name, one.begin, end))
                else:
                    left.append(one)
            self._begun = left

    # ---- what it shows ----

    def overlap(self, name: str = "backward") -> float:
        """The fraction of the time in which a push was under way that lies within spans of the name; 0 without any."""
        pushes, spans = _union(self.pushes), _union([one for one in self.spans if one.name == name])
        whole = sum(end - begin for begin, end in pushes)
        both = sum(max(0.0, min(end, to) - max(begin, since)) for begin, end in pushes for since, to in spans)
        return both / whole if whole > 0 else 0.0

    def ahead(self) -> float:
        """The fraction of stage 3's fetches that were begun while another unit was used; 0 without any."""
        ahead = [fetch for fetch in self.fetches
                 if any(use.begin <= fetch.begin <= use.end and use.name != fetch.name for use in self.uses)]
        return len(ahead) / len(self.fetches) if self.fetches else 0.0

    def events(self, process: int = 0) -> List[Dict[str, Any]]:
        """Of the trace event format, times in microseconds: a row for each name of a span, then as many as are needed
        for units in use, for their fetches, and for pushes under way at once."""
        uses = [Span(f"{one.name}, {one.phase}", one.begin, one.end) for one in self.uses]
        kinds = [("", self.spans), ("use ", uses), ("fetch ", self.fetches), ("push ", self.pushes)]
        zero = min((one.begin for _, spans in kinds for one in spans), default=0.0)
        names = list(dict.fromkeys(one.name for one in self.spans))
        made = [{"name": "process_name", "ph": "M", "pid": process, "args": {"name": f"worker {process}"}}]
        made += [_event(one.name, one, process, names.index(one.name), zero) for one in self.spans]
        first = len(names)
        for word, spans in kinds[1:]:
            busy: List[float] = []  # until when, of each row
            for span in sorted(spans, key=lambda one: one.begin):
                row = next((i for i, until in enumerate(busy) if until <= span.begin), len(busy))
                busy[row:row + 1] = [span.end]
                made.append(_event(word + span.name, span, process, first + row, zero))
            first += len(busy)
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
