"""Attaching to a job that is there: it must be, or this is another one than it was, and how it becomes so."""

from __future__ import annotations

import logging
import re
import time
from typing import Any, Dict, Optional

from . import _c
from .errors import Mismatch, NotFound, Timeout
from .job import Job
from .session import Session
from .spec import SNAPSHOT_RULES, Group, JobSpec, Schedule

_RESTORE_S = 3600.0
_POLICY = {"snapshot_every": "snapshot_every", "snapshot_keep": "snapshot_keep", "on_shard_loss": "on_shard_loss",
           "shard_loss_wait_s": "shard_loss_wait", "on_worker_loss": "on_worker_loss",
           "worker_loss_wait_s": "worker_loss_wait", **{name: name for name in SNAPSHOT_RULES}}
_HYPER = frozenset("lr beta1 beta2 eps weight_decay nesterov".split())
_SCHEDULE = frozenset("schedule warmup_steps total_steps decay_steps lr_min point_count point".split())
_MAKERS = {_c.SCHEDULE_CONSTANT: "constant", _c.SCHEDULE_LINEAR: "linear", _c.SCHEDULE_COSINE: "cosine",
           _c.SCHEDULE_WSD: "wsd", _c.SCHEDULE_TABLE: "table"}


def judge(session: Session, name: str, timeout: float) -> None:
    """There is such a job."""
    try:
        session.open_reader(name, timeout).close()
    except NotFound:
        raise missing(name) from None


def missing(name: str) -> NotFound:
    return NotFound(f"there is no job {name}, and must_exist=True begins none: `cairn job list` shows the jobs there "
                    f"are; if it is lost, `cairn snapshot restore {name} latest` brings its newest snapshot back "
                    f"(`cairn snapshot list {name}` shows all)")


def open_worker(session: Session, name: str, spec: JobSpec, timeout: float, must_exist: bool,
                resume: Optional[str], must_not_exist: bool = False, takeover: bool = False) -> Job:
    """Mismatch says, too, what amends the job where that is enough."""
    try:
        return session.open_worker(name, spec, timeout, must_exist, resume, must_not_exist, takeover)
    except Mismatch as mismatch:
        call = amendment(str(mismatch), spec)
        if call is None:
            raise
        if call.startswith("m.amend(workers="):
            call += f", or `cairn job amend {name} --workers {spec.workers_min}:{spec.workers_max}`"
        raise Mismatch(f"{mismatch}\nThese may change while it trains: attach as it was, then {call}") from None


def after_restore(session: Session, name: str, spec: JobSpec, timeout: float) -> Job:
    """Opens the job that is being restored: waits for that, which takes as long as a large snapshot does."""
    give_up = time.monotonic() + max(timeout, _RESTORE_S)
    while True:
        try:
            return session.open_worker(name, spec, timeout, must_exist=True)
        except Timeout as late:
            if time.monotonic() >= give_up:
                raise
            logging.getLogger("cairn").warning("job %s is awaited: %s", name, late)


def amendment(differences: str, spec: JobSpec) -> Optional[str]:
    """The call of m.amend that makes the job what `spec` is; None: it takes more than that, or not all is told.
    `differences`: a sentence, then a line each."""
    groups: Dict[str, Dict[str, str]] = {}
    clip, workers, policy = "", "", []
    for line in differences.splitlines()[1:]:
        if re.match(r"job .*: clip_norm .* here, ", line):
            clip = f"clip_norm={spec.clip_norm or 0.0!r}"
            continue
        if line.endswith(" driven on the servers") or " driven here, " in line:
            return None  # no amendment makes the one the other
        field = re.match(r"job \S+: (\w+) .*here, ", line)
        if field is not None and field[1] in _POLICY:
            policy.append(f"{_POLICY[field[1]]}={getattr(spec, _POLICY[field[1]])!r}")
            continue
        if re.match(r"job .*: workers_(min|max) .* here, ", line) and spec.workers_max:
            workers = f"workers=({spec.workers_min}, {spec.workers_max})"
            continue
        group = next((one for one in spec.groups if line.startswith(f"group {one.name}: ")), None)
        change = _change(group, line[len(f"group {group.name}: "):].split()[0]) if group is not None else None
        if group is None or change is None:
            return None
        groups.setdefault(group.name, {}).update(change)
    by_group = ", ".join(f"{name!r}: dict({', '.join(f'{key}={value}' for key, value in changes.items())})"
                         for name, changes in groups.items())
    arguments = [f"{{{by_group}}}"] * bool(groups) + [clip] * bool(clip) + [workers] * bool(workers) + policy
    return f"m.amend({', '.join(arguments)})" if arguments else None


def _change(group: Group, field: str) -> Optional[Dict[str, str]]:
    if field in _HYPER:
        return {field: repr(getattr(group, field))}
    return {"schedule": _spelled(group.schedule)} if field in _SCHEDULE else None


def _spelled(schedule: Schedule) -> str:
    given: Dict[str, Any] = {key: getattr(schedule, key) for key in ("total_steps", "decay_steps", "warmup_steps",
                                                                     "lr_min") if getattr(schedule, key)}
    if schedule.points:
        given = {"points": "[…]", **given}
    return f"cairn.{_MAKERS[schedule.kind]}({', '.join(f'{key}={value}' for key, value in given.items())})"
