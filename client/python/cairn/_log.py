"""What the package says in the trainer's own log: the logger "cairn" of the logging module."""

from __future__ import annotations

import logging
import time
from typing import Dict, Sequence

from .errors import some_of
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


def waits(job: str, awaited: str) -> None:
    _LOG.warning("job %s: %s", job, awaited)


def imported(job: str, what: str) -> None:
    _LOG.info("job %s: imported %s", job, what)


def is_new(job: str) -> None:
    _LOG.info("job %s is new", job)


def goes_on(job: str, step: int, made_by: str, asked: bool) -> None:
    """Nobody `asked` for a job that is there: perhaps another script has the name, which is the model's class."""
    _LOG.log(logging.INFO if asked else logging.WARNING, "goes on with job %s at step %d%s%s", job, step,
             f", made by {made_by}" if made_by else "",
             "" if asked else "; must_exist=True if that is meant, name=… or must_not_exist=True if it is not")


def without_gradient(job: str, step: int, names: Sequence[str], most: int) -> None:
    _LOG.warning("job %s: the backward passes of step %d had no gradient for %s; for the servers that is a gradient of "
                 "zeros: moments fade, and a weight decay goes on, where torch.optim leaves a parameter alone. "
                 "attach(…, missing_gradients=\"leave\") does as torch does, missing_gradients=\"zero\" says that it "
                 "is meant", job, step, some_of(names, most))


def without_card(number: int, why: str) -> None:
    _LOG.warning("gradients and parameters on cuda:%d go through the host: %s", number, why)


def without_room(device: object, why: str) -> None:
    _LOG.warning("gradients on %s have no memory of their own there, and are pushed from autograd's: %s", device, why)


def opened(data_path: str) -> None:
    _LOG.info("data path: %s", data_path)


class _Limit:
    """At most a line in SECONDS; the next one says how many were left out."""

    def __init__(self) -> None:
        self._next, self._unsaid = 0.0, 0

    def passes(self) -> bool:
        if time.monotonic() < self._next:
            self._unsaid += 1
            return False
        self._next = time.monotonic() + SECONDS
        return True

    def unsaid(self) -> str:
        before, self._unsaid = self._unsaid, 0
        return f" ({before} since this was last said)" if before else ""


def _gradient(result: Result) -> str:
    if not result.nonfinite_tensors:
        return "a gradient is not finite"
    return f"the gradient of {result.nonfinite_tensors} is not finite"


def without_buffers(job: str, step: int, why: str) -> None:
    _LOG.warning("job %s: the buffers of step %d were not written, a snapshot or reader has those of an earlier one "
                 "until the next are: %s", job, step, why)


class Surplus:
    """Says of a job that its rounds have no micro-batch for this worker, when that begins."""

    def __init__(self, job: str):
        self._job, self._idles = job, False

    def note(self, round_: Round) -> None:
        idles = round_.global_batch > 0 and not round_.micro_batches
        if idles and not self._idles:
            _LOG.warning("job %s: global_batch is %d, and workers of lower rank have all micro-batches: this one "
                         "idles, and takes part when one of them leaves", self._job, round_.global_batch)
        self._idles = idles


class Ends:
    """Says of a job's rounds that they were skipped, or left what is not finite: who looks at the steps alone sees
    nothing go wrong."""

    def __init__(self, job: str):
        self._job, self._skips, self._results = job, _Limit(), _Limit()

    def note(self, round_: Round, result: Result) -> None:
        if not result.applied and self._skips.passes():
            why = "no worker counts anything in it" if result.finite else _gradient(result)
            _LOG.warning("job %s: round %d of step %d was skipped, nothing was applied: %s; %d skipped so far%s, the "
                         "next batch is number %d", self._job, round_.round, round_.step, why, result.skips,
                         self._skips.unsaid(), result.index)
        if result.applied and result.nonfinite and self._results.passes():
            _LOG.warning("job %s: of %d elements the parameter, a moment or the published copy is not finite after the "
                         "update to step %d: %s%s", self._job, result.nonfinite, result.step, result.nonfinite_tensors,
                         self._results.unsaid())
