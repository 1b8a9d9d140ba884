"""One exception class a status of cairn.h. The text is cairn_error(): what, why, what to do."""

from __future__ import annotations

from typing import Dict, NamedTuple, Optional, Sequence, Tuple, Type

__all__ = ["CairnError", "Invalid", "BadHandle", "Unsupported", "Timeout", "Busy", "NotFound", "Exists",
           "NoMemory", "NoSpace", "InputOutput", "BadConfig", "Protocol", "WrongVersion", "Malformed",
           "Stale", "Duplicate", "Checksum", "Corrupt", "VersionGone", "Canceled", "EpochChanged",
           "NonFinite", "Mismatch", "Fenced", "Refused", "NotReady", "JobLost", "RolledBack", "Halted",
           "PlaceTaken", "Reopen", "Unreachable", "Closed", "Internal"]


class CairnError(Exception):
    """Whatever Cairn refuses or cannot do. `status` is the number in cairn.h."""

    status = 0


class Invalid(CairnError, ValueError):
    """An argument is not valid."""
    status = 1


class BadHandle(CairnError, ValueError):
    """The session, job or operation is closed."""
    status = 2


class Unsupported(CairnError, NotImplementedError):
    """Not supported by this version; nothing else is done in its place."""
    status = 3


class Timeout(CairnError, TimeoutError):
    """The deadline passed and nothing was changed; the text names who is awaited. Call again to go on waiting."""
    status = 4


class Busy(CairnError):
    """It is in use, try again later."""
    status = 5


class NotFound(CairnError, LookupError):
    """No such job, tensor, plane or snapshot."""
    status = 6


class Exists(CairnError):
    """It exists already."""
    status = 7


class NoMemory(CairnError, MemoryError):
    """Out of memory, or over the configured limit."""
    status = 8


class NoSpace(CairnError):
    """No space left on the storage."""
    status = 9


class InputOutput(CairnError):
    """Reading or writing failed."""
    status = 10


class BadConfig(CairnError):
    """The configuration is not valid."""
    status = 11


class Protocol(CairnError):
    """The peer broke the protocol."""
    status = 20


class WrongVersion(CairnError):
    """The peer speaks another version of the protocol."""
    status = 21


class Malformed(CairnError):
    """The message or file is malformed."""
    status = 22


class Stale(CairnError):
    """Of a finished round or an older epoch."""
    status = 23


class Duplicate(CairnError):
    """It was given already."""
    status = 24


class Checksum(CairnError):
    """A checksum does not match."""
    status = 25


class Corrupt(CairnError):
    """Stored data is damaged or incomplete."""
    status = 26


class VersionGone(CairnError):
    """That version is no longer kept; ask for a newer one."""
    status = 27


class Canceled(CairnError):
    """Canceled, because the job or session is closing."""
    status = 28


class EpochChanged(CairnError):
    """Somebody came or went; nothing was applied. Begin the step again and compute it anew."""
    status = 40


class NonFinite(CairnError, ArithmeticError):
    """A gradient is not finite and the job's policy is to fail: the text has the tensors. The rank is not known once
    gradients are added up: look at the loss of each, and at its gradients before they are pushed."""
    status = 41


class Difference(NamedTuple):
    """In what a spec is another one than the job's. `key` and `value`: the setting (Job.amend's) that makes the job
    what the spec says; None: none does. `change`: how, CHANGE_ of cairn.h. Of a tensor: `tensor`, its name, `field`,
    what of it ("kind", "group"; "only here", "only there": one side alone has it), and `there`, what the servers'
    has."""

    text: str
    key: Optional[str]
    value: Optional[str]
    change: int
    tensor: Optional[str] = None
    field: Optional[str] = None
    there: Optional[str] = None


class Mismatch(CairnError):
    """The job on the servers is another one than this; the text lists the differences, and says what changes the job.
    So do `differences`, for programs: of an attach, 64 at most."""
    status = 60
    differences: Tuple[Difference, ...] = ()


class Fenced(CairnError):
    """A newer member has this one's place (its rank): end this process, or open the job with another rank."""
    status = 61


class Refused(CairnError, PermissionError):
    """Not allowed."""
    status = 62


class NotReady(CairnError):
    """The job has no initial state yet."""
    status = 63


class JobLost(CairnError):
    """A shard lost its part of the job. Attach again with resume="latest", which restores its newest snapshot first, or
    restore one by `cairn snapshot restore`, then start again."""
    status = 64


class RolledBack(CairnError):
    """The job was restored from a snapshot, by an operator or because a shard was lost (on_shard_loss). An attached
    model has opened it again: go on from `step`, with the batches, the sampler and the scheduler of that step (they may
    be in m.client_state()). `step` is None from a Job of one's own, which is to be closed and opened again, and while
    another thread is in a pass of a model: the next m.begin() raises it with its step."""
    status = 65
    step: Optional[int] = None


class Halted(CairnError):
    """No round opens: too many in a row were skipped, until the job is amended, written or restored; or the last update
    left what is not finite and on_nonfinite is fail, until it is written or restored; or a worker was lost and
    on_worker_loss is fail, until it is amended or restored. No NonFinite, which a loop may
    pass over batch by batch."""
    status = 66


class PlaceTaken(CairnError):
    """Another process has this rank of the job, and lives: the text says which. End one of the two, give one another
    rank or its job another name, or take the place: takeover=True."""
    status = 67


class Reopen(CairnError):
    """The job is another one now (a tensor came, or it was made anew), or this worker was put out at the step's
    deadline: close this handle and open the job again."""
    status = 68


class Unreachable(CairnError, ConnectionError):
    """The coordinator or a shard cannot be reached."""
    status = 80


class Closed(CairnError, ConnectionError):
    """The connection or session is closed."""
    status = 81


class Internal(CairnError):
    """A fault in Cairn; please report it."""
    status = 99


def _leaves(of: Type[CairnError]) -> Dict[int, Type[CairnError]]:
    return {kind.status: kind for kind in of.__subclasses__()}


BY_STATUS: Dict[int, Type[CairnError]] = _leaves(CairnError)


def error(status: int, text: str) -> CairnError:
    """The exception for a status; one that this package does not know is a CairnError with its number."""
    if status == JobLost.status and text and "resume" not in text:
        text += "; or close it here and attach again with resume=\"latest\", which restores its newest snapshot first"
    made = BY_STATUS.get(status, CairnError)(text or f"status {status}")
    made.status = status
    return made


def some_of(names: Sequence[str], most: int = 5) -> str:
    """For a sentence: the first names, and how many more there are."""
    return ", ".join(names[:most]) + (f" and {len(names) - most} more" if len(names) > most else "")


def first_of(names: Sequence[str], most: int = 5) -> str:
    """The same, where it does not matter how many."""
    return ", ".join(names[:most]) + (", …" if len(names) > most else "")
