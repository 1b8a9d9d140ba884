"""What an attached model does between steps: it writes, amends, pauses, has snapshots made and reads state."""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import warnings
from typing import Any, Callable, Container, Dict, Iterator, Mapping, Optional, Sequence, Tuple, Union

import torch

from . import _blobs, _buffers, _log, _transfer
from ._held import TRIES, Held
from .errors import CairnError, EpochChanged, Invalid, NotFound, RolledBack, Stale
from .job import RoundHandle
from .memory import can_lend
from .optim import changed_group, group_settings, why_no_moment
from .spec import PAIRS, POLICIES, SNAPSHOT_RULES, JobSpec, Version, settings_of
from ._wrapped import own_name


_AWAITED_S = 20.0  # another worker's buffers


def goes_on(method: Callable[..., Any]) -> Callable[..., Any]:
    """RolledBack out of it has its step: the job is open again. What it raises ends the pass that it is called in."""
    @functools.wraps(method)
    def call(self: "Between", *given: Any, **options: Any) -> Any:
        try:
            return method(self, *given, **options)
        except RolledBack as rolled:
            self._roll_back(rolled)
            raise
    return call


def _policy(spec: JobSpec, changes: Mapping[str, Any]) -> JobSpec:
    """What belongs together is amended together: what is left out is at its default, but a rule of snapshots, which
    stays what it is."""
    for first, second in PAIRS:
        if second in changes and first not in changes:
            raise Invalid(f"{second} without {first}: give both, {first}={getattr(spec, first)!r} to leave it")
        if first in changes:
            spec = dataclasses.replace(spec, **{first: changes[first], second: changes.get(second, 0)})
    spec = dataclasses.replace(spec, **{name: changes[name] for name in SNAPSHOT_RULES if name in changes})
    return spec


_FIELDS = {one.name for one in dataclasses.fields(JobSpec)} - {
    "tensors", "groups", "rank", "world", "start_wait", "workers_min", "workers_max", "clip_norm"} | {"wire"}


class Between(Held):
    """Subclasses have the rounds."""

    _spec: JobSpec
    _round: Optional[RoundHandle]
    _rank: int  # dense, of the last round
    _sent_buffers: _buffers.Written
    _gives_buffers: bool  # this worker writes them
    clip_norm: float

    def _roll_back(self, rolled: RolledBack) -> None:
        raise NotImplementedError

    def _load_after(self, version: Version, is_as_left: bool = False) -> None:
        raise NotImplementedError

    state_dict = goes_on(Held.state_dict)

    @goes_on
    def client_state(self) -> bytes:
        """What was given to the step() that made the newest version, restored with it; b"" if nothing was. Between
        begin() and step() that is the version of the round."""
        return self._job.client_state(self.timeout).data

    @goes_on
    def write(self, values: Mapping[str, Any], plane: str = "param") -> Version:
        """Writes whole tensors outside the optimizer, between two steps, as one new version: {"head.bias": tensor}.
        Buffers and blobs (bytes) too; `plane` "exp_avg" or "exp_avg_sq" for moments. By one worker: the others have it
        with the next round."""
        version = self._write_planes({plane: values})
        self._load_after(version)
        self._take_buffers(values)
        return version

    def _take_buffers(self, names: Container[str]) -> None:
        """Those that are written outside of rounds, of the version that is here."""
        self._sent_buffers.follow()
        buffers = [(slot, slot.parameter) for slot in self._buffers if slot.name in names]
        _transfer.load(self._job, self._version, buffers, self.timeout)
        raw = {name: buffer for name, buffer in self._raw.items() if name in names}
        _buffers.load(self._job, self._version, raw, self.timeout)
        self._sent_buffers.note()

    def _with_buffers(self, applied: Version, mine: bool) -> Version:
        """The version that has the buffers of the step, too. `mine`: this worker gives them, the others wait for it."""
        spec = self._spec
        if spec.buffers_every == 0:
            self._warn_of_buffers()
            return applied
        if applied.step % spec.buffers_every and (not spec.snapshot_every or applied.step % spec.snapshot_every):
            return applied
        try:
            if mine:
                version = self._write_buffers(self._sent_buffers.changed() or self._sent_buffers.some())
                if version == (applied.generation + 1, applied.step) and self._version.generation == applied.generation:
                    self._version = Version(version.generation, self._version.step)  # frozen ones are not another's
                return version
            return self._job.version_wait(Version(applied.generation + 1, 0), min(self.timeout, _AWAITED_S))
        except RolledBack:
            raise
        except CairnError as failure:  # the step is applied all the same
            _log.without_buffers(self.name, applied.step, str(failure))
            return applied

    def _write_buffers(self, values: Mapping[str, Any]) -> Version:
        version = self._write_planes({"param": values})
        self._sent_buffers.note()
        return version

    def _write_late_buffers(self) -> None:
        """Those that have changed since, before what wants the newest."""
        changed = self._sent_buffers.changed() if self._spec.buffers_every > 0 and self._round is None else {}
        if changed and self._gives_buffers:
            self._load_after(self._write_buffers(changed))

    def _warn_of_buffers(self) -> None:
        names = self._sent_buffers.unwritten()
        if names:
            warnings.warn(f"a forward pass changes {', '.join(names[:5])}{', …' if len(names) > 5 else ''}, and no "
                          "snapshot, reader or export has that: give attach(…, buffers_every=1), so that rank 0 writes "
                          "them with each step, or 0 if nobody needs them", stacklevel=5)

    def _write_planes(self, planes: Mapping[str, Mapping[str, Any]]) -> Version:
        """As write(), of several planes: {plane: {name: tensor}}; but what is here stays as it is."""
        if self._round is not None:
            raise Invalid("a step is open: write before its first forward pass, or after step()")
        planes = {plane: {own_name(name): value for name, value in values.items()} for plane, values in planes.items()}
        self._judge_write({name for values in planes.values() for name in values})
        masters = {plane: self._masters(values, plane) for plane, values in planes.items()}
        for left in reversed(range(TRIES)):
            try:
                return self._write_once(masters)
            except (EpochChanged, Stale):  # somebody came or went, nothing was written
                if left == 0:
                    raise
        raise AssertionError("TRIES is 0")

    def _judge_write(self, names: Container[str]) -> None:
        """What was written here in place is to be among them: it is undone by what is fetched then."""

    def _masters(self, values: Mapping[str, Any], plane: str) -> Dict[str, Any]:
        """As they are put."""
        slots = {slot.name: slot for slot in self._slots + self._buffers}
        opaque = {name: _blobs.to_write(self.blobs, name, value, plane) for name, value in values.items()
                  if name in self.blobs}
        opaque.update((name, _buffers.to_write(self._raw[name], name, value)) for name, value in values.items()
                      if name in self._raw)
        values = {name: value for name, value in values.items() if name not in opaque}
        for name, value in values.items():
            why = why_no_moment(plane, value)
            if why is not None:
                raise Invalid(f"{plane} of {name} {why}")
            if name not in slots or tuple(value.shape) != tuple(self._shape(slots[name])):
                raise Invalid(f"{name} of {list(value.shape)} is no (first) name of a tensor of that shape")
        hosts = {name: value.detach().to(device="cpu", dtype=torch.float32) for name, value in values.items()}
        masters: Dict[str, Any] = {name: host if can_lend(host) else host.contiguous() for name, host in hosts.items()}
        return {**masters, **opaque}

    @goes_on
    def amend(self, groups: Optional[Mapping[str, Mapping[str, Any]]] = None, freeze: Sequence[str] = (),
              unfreeze: Sequence[str] = (), clip_norm: Optional[float] = None, freeze_tensors: Sequence[str] = (),
              unfreeze_tensors: Sequence[str] = (), workers: Union[None, int, Tuple[int, int]] = None,
              **fields: Any) -> None:
        """Changes the job for all its workers from the next round on: {"default": dict(lr=1e-4)}, names of groups or
        of parameters that are frozen or not any more, the clip norm, how many workers there are to be (at once, also
        for those who wait); snapshot_every, snapshot_keep and the other rules of snapshots, on_shard_loss,
        shard_loss_wait, on_worker_loss and worker_loss_wait as in JobSpec. One worker's call is enough.

        Other fields of JobSpec, and wire="bf16": stage (1, 2, 3), micro_batches, global_batch, seed,
        client_state_max, window, on_nonfinite, skips_max, loss_scale and what goes with it begin a new generation of
        the job, at the same step and with its moments: this model, and that of each other worker, is Reopen then;
        close it and attach again, with the terms as they are or as they were. What no amendment changes is
        Unsupported, with the command that does it."""
        unknown = sorted(set(fields) - _FIELDS)
        if unknown:
            raise TypeError(f"amend() has no argument {', '.join(unknown)}")
        policy = {name: value for name, value in fields.items() if name in POLICIES}
        settings = {name: value for name, value in fields.items() if name not in policy}
        wanted = _policy(self._spec, policy)
        known = {group.name: group for group in self._spec.groups}
        unknown = sorted(set(groups or {}) - set(known))
        if unknown:
            raise NotFound(f"no group {', '.join(unknown)}; there are {', '.join(known)}")
        changed = [changed_group(known[name], change) for name, change in (groups or {}).items()]
        given = {*policy, *(second for first, second in PAIRS if first in policy)}
        settings.update(settings_of({name: getattr(wanted, name) for name in POLICIES if name in given}))
        settings.update(group_settings(groups or {}, changed))
        self._job.amend((), freeze, unfreeze, clip_norm, timeout=self.timeout, freeze_tensors=freeze_tensors,
                        unfreeze_tensors=unfreeze_tensors, workers=workers, settings=settings)
        self.clip_norm = self.clip_norm if clip_norm is None else clip_norm
        now = {**known, **{group.name: group for group in changed}}
        self._spec = dataclasses.replace(wanted, groups=tuple(now.values()))

    @contextlib.contextmanager
    def pause(self, what: str, at_most: float = 600.0) -> Iterator[None]:
        """with m.pause("evaluating", at_most=600): the other workers wait for this one meanwhile, in a step or between
        two, whatever their timeouts are, and say so once a minute. After `at_most` seconds the usual rules hold."""
        try:
            with self._job.pause(what, at_most, self.timeout):
                yield
        except RolledBack as rolled:
            self._roll_back(rolled)
            raise

    @goes_on
    def blob(self, name: str) -> bytes:
        """The newest bytes of a blob, read from the servers."""
        return _blobs.read(self._job, name, self.timeout)

    def _write_once(self, planes: Mapping[str, Mapping[str, Any]]) -> Version:
        self._job.write_begin(self.timeout)
        for plane, masters in planes.items():
            for name, master in masters.items():
                is_bytes = name in self.blobs or name in self._raw
                self._job.put(name, master, plane=plane, dtype="u8" if is_bytes else "f32")
        return self._job.write_end(self.timeout)

    @goes_on
    def snapshot(self, wait: bool = True, timeout: float = 600.0) -> Optional[str]:
        """The servers write a snapshot of the newest version while training goes on; with wait: returns when it is
        committed. Every worker may call it: the first of the last round has it made and gets its id, others None.
        (m.job.snapshot() is for one who decides alone.) Buffers that have changed since a step are written before."""
        self._write_late_buffers()
        return self._job.snapshot(wait, timeout) if self._rank == 0 else None
