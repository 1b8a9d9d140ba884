"""How a call of cairn.h is made: its status raised, its wait in slices, so that Ctrl-C is heard."""

from __future__ import annotations

import threading
import time
from typing import Any, Callable

from . import _c, _log
from .errors import Invalid, Timeout, error
from .spec import Version

TIMEOUT_S = 60.0
QUIET_S = 5.0  # that a call may wait and say nothing
_SLICE_S = 0.5  # a signal is seen after so long


def milliseconds(seconds: float) -> int:
    if isinstance(seconds, str) or not 0 <= seconds < 2**31 / 1000:
        raise Invalid(f"a timeout of {seconds!r} s; it must be finite and not negative")
    return int(seconds * 1000)


def check(status: int) -> None:
    """Raises what a status means; cairn_error() is of this thread, so this follows the call at once."""
    if status != 0:
        raise error(status, _c.lib().cairn_error().decode(errors="replace"))


_paused = threading.local()  # seen: the call of this thread waited for a worker in a pause
_waits = _log.Waits()


@_c.ON_WAIT
def on_wait(_: Any, job: bytes, awaited: bytes, paused_ms: int) -> bool:
    name, text = job.decode(errors="replace"), awaited.decode(errors="replace")
    if paused_ms > 0:
        _paused.seen = True
        _waits.note(name, text)
    else:
        _log.waits(name, text)  # of a call that is not sliced
    return False  # sliced calls again


def sliced(job: str, call: Callable[[int], int], timeout: float) -> None:
    """Calls with at most half a second at a time: TIMEOUT changes nothing, and Ctrl-C is heard between. The log says
    for whom it waits, as the library does for a call that waits so long at once."""
    left_ms = milliseconds(timeout)
    deadline = time.monotonic() + timeout
    says_at = time.monotonic() + QUIET_S
    while True:
        _paused.seen = False
        status = call(min(left_ms, int(_SLICE_S * 1000)))
        if _paused.seen:  # for a worker that said so: its time does not count
            deadline = time.monotonic() + timeout
        left_ms = max(0, int((deadline - time.monotonic()) * 1000))
        if status != Timeout.status or left_ms == 0:
            return check(status)
        if not _paused.seen and time.monotonic() >= says_at:
            text = _c.lib().cairn_error().decode(errors="replace")
            _log.waits(job, text.partition(" timed out: ")[2] or text)
            says_at = time.monotonic() + _log.MINUTE


def version_of(version: _c.Version) -> Version:
    return Version(version.generation, version.step)
