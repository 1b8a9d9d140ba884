"""What the package says in the trainer's own log: the logger "cairn" of the logging module."""

from __future__ import annotations

import logging
import time
from typing import Dict

from .records import Result, Round

_LOG = logging.getLogger("cairn")
SECONDS = 10.0  # between two lines of a job
MINUTE = 60.0  # the same, of one who waits


class Waits:
    """Says for whom a job waits that is at work on something else: what stands still looks as if it had died."""

    def __init__(self) -> None:
        self._next: Dict[str, float] = {}

    def note(self, job: str, awaited: str) -> None:
        if time.monotonic() < self._next.get(job, 0.0):
            return
        self._next[job] = time.monotonic() + MINUTE
        _LOG.warning("job %s waits for %s", job, awaited)


def opened(data_path: str) -> None:
    _LOG.info("data path: %s", data_path)


class Skips:
    """Says of a job's rounds that they were skipped: who looks at the steps alone sees nothing go wrong."""

    def __init__(self, job: str):
        self._job, self._next, self._unsaid = job, 0.0, 0

    def note(self, round_: Round, result: Result) -> None:
        if result.applied:
            return
        if time.monotonic() < self._next:
            self._unsaid += 1
            return
        self._next = time.monotonic() + SECONDS
        why = "no worker counts anything in it" if result.finite else "a gradient is not finite"
        before, self._unsaid = self._unsaid, 0
        _LOG.warning("job %s: round %d of step %d was skipped, nothing was applied: %s; %d skipped so far%s, the next "
                     "batch is number %d", self._job, round_.round, round_.step, why, result.skips,
                     f" ({before} since this was last said)" if before else "", result.index)
