"""Attaching to a job that is there: it must be, or this is another one than it was, and how it becomes so."""

from __future__ import annotations

import logging
import time
from typing import Any, Dict, List, Optional, Sequence, Set, Tuple

from . import _c
from .errors import Difference, Mismatch, NotFound, Timeout
from .job import Job
from .session import Session
from .spec import FIELDS, PAIRS, Group, JobSpec, Schedule, Tensor

_RESTORE_S = 3600.0
_ANEW = ", in a new generation for which every worker attaches anew"
_LINES, _ROWS, _BYTES = 10, 64, 8192  # differences that a sentence lists; that a Mismatch has, and their texts
_NAMES = {one.c_name: one.name for one in FIELDS}  # by those of cairn.h
_HYPER = frozenset("lr beta1 beta2 eps weight_decay momentum nesterov ema ema_schedule".split())
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
        call = amendment(mismatch.differences, spec)
        if call is None:
            raise
        anew = any(one.change == _c.CHANGE_REOPENED for one in mismatch.differences)
        anew = anew or "unfreeze_tensors=" in call or "add=[" in call
        if "add=[" in call:
            call += ", and after the next attach m.write({name: values})"
        if call.startswith("m.amend(workers="):
            call += f", or `cairn job amend {name} --workers {spec.workers_min}:{spec.workers_max}`"
        made = Mismatch(f"{_said(name, mismatch)}\nThese may change while it trains{_ANEW * anew}: attach as it was, "
                        f"then {call}")
        made.differences = mismatch.differences
        raise made from None


def _said(name: str, mismatch: Mismatch) -> str:
    """The servers' sentence. Where they know no way it is without their advice, which speaks of settings alone."""
    differences = mismatch.differences
    if all(one.change != _c.CHANGE_NEVER for one in differences):
        return str(mismatch)
    words = [word for one in differences for word in (one.text, one.key, one.value, one.tensor, one.field, one.there)]
    used = sum(len(word.encode()) + 1 for word in words if word is not None)
    may_lack = len(differences) == _ROWS or used > _BYTES // 2  # the library may have had no room for others
    left, least = len(differences) - _LINES, "at least " * may_lack
    return "\n".join([f"job {name} differs from this spec: give the job's values, or choose another name, or drop it "
                      "(`cairn job drop`), or change it as the last line says:",
                      *[one.text for one in differences[:_LINES]],
                      *[f"and {least}{left} more differences"] * (left > 0)])


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


def amendment(differences: Sequence[Difference], spec: JobSpec) -> Optional[str]:
    """The calls that make the job what `spec` is; None: it takes more than that, or not all is told."""
    groups: Dict[str, Dict[str, str]] = {}
    tensors, wires, added, told = _tensors(differences, spec)
    fields: Dict[str, str] = {what: spelled for what, spelled in tensors}
    for one in differences:
        if one in told:
            continue
        if one.key is None or one.change > _c.CHANGE_REOPENED:
            return None
        group = max((g for g in spec.groups if one.key.startswith(f"{g.name}.")), default=None,
                    key=lambda g: len(g.name))
        if group is not None:
            groups.setdefault(group.name, {}).update(_change(group, one.key[len(group.name) + 1:]))
        elif "." in one.key or one.value is None:
            return None
        else:
            fields.update(_field(_NAMES.get(one.key, one.key), one.value, spec))
    by_group = ", ".join(f"{name!r}: dict({', '.join(f'{key}={value}' for key, value in changes.items())})"
                         for name, changes in groups.items())
    arguments = [f"{{{by_group}}}"] * bool(groups) + [f"{name}={value}" for name, value in fields.items()]
    calls = [f"m.amend({', '.join(arguments)})"] * bool(arguments)
    more = [f"settings={{{', '.join(wires)}}}"] * bool(wires) + [f"add=[{', '.join(added)}]"] * bool(added)
    calls += [f"m.job.amend({', '.join(more)})"] * bool(more)
    return "; ".join(calls) or None


def _tensors(differences: Sequence[Difference],
             spec: JobSpec) -> Tuple[List[Tuple[str, str]], List[str], List[str], Set[Difference]]:
    """Arguments of m.amend that freeze and thaw tensors, and those of m.job.amend that give single ones another wire
    dtype, or add them; and which differences these are of."""
    here = {tensor.name: tensor for tensor in spec.tensors}
    frozen: List[str] = []
    thawed: Dict[str, str] = {}
    wires, added, told = [], [], set()  # type: List[str], List[str], Set[Difference]
    kinds = ("trained", "frozen")
    for one in differences:
        tensor = here.get(one.tensor or "")
        turns = tensor is not None and one.field == "kind" and tensor.kind in kinds and one.there in kinds
        if tensor is not None and one.field == "only here" and tensor.alias_of is None and tensor.kind != "blob":
            added.append(_spelled_tensor(tensor))
        elif tensor is not None and turns and tensor.kind == "trained":
            thawed[tensor.name] = tensor.group or "default"
        elif tensor is not None and turns:
            frozen.append(tensor.name)
        elif one.key is not None and one.key.endswith(".wire") and one.key[:-len(".wire")] in here:
            wires.append(f"{one.key!r}: {one.value!r}")
        else:
            continue
        told.add(one)
    told.update(one for one in differences if one.field == "group" and one.tensor in (*thawed, *frozen))
    lists = [("freeze_tensors", repr(frozen))] * bool(frozen) + [("unfreeze_tensors", repr(thawed))] * bool(thawed)
    return lists, wires, added, told


def _spelled_tensor(tensor: Tensor) -> str:
    """With a beginning of zeros, which m.write makes another."""
    given = [repr(tensor.name), repr(tuple(tensor.shape)), f"unit={tensor.unit!r}"]
    given += [f"group={tensor.group or 'default'!r}"] if tensor.kind == "trained" else [f"kind={tensor.kind!r}"]
    return f"cairn.Tensor({', '.join(given)}, wire={tensor.wire!r}, init=cairn.Init('zeros'))"


def _field(name: str, value: str, spec: JobSpec) -> Dict[str, str]:
    """What m.amend takes together is given together, as `spec` has it."""
    if name in ("workers_min", "workers_max"):
        return {"workers": f"({spec.workers_min}, {spec.workers_max or spec.workers_min})"}
    pair = next((pair for pair in PAIRS if name in pair), ())
    if pair:
        return {one: repr(getattr(spec, one)) for one in pair}
    had = getattr(spec, name, "")
    if isinstance(had, (str, float)):
        return {name: repr(type(had)(value))}
    return {name: str(value == "yes") if isinstance(had, bool) else value}


def _change(group: Group, field: str) -> Dict[str, str]:
    if field in _HYPER:
        return {field: repr(getattr(group, field))}
    return {"schedule": _spelled(group.schedule)}


def _spelled(schedule: Schedule) -> str:
    given: Dict[str, Any] = {key: getattr(schedule, key) for key in ("total_steps", "decay_steps", "warmup_steps",
                                                                     "lr_min") if getattr(schedule, key)}
    if schedule.points:
        given = {"points": "[…]", **given}
    return f"cairn.{_MAKERS[schedule.kind]}({', '.join(f'{key}={value}' for key, value in given.items())})"
