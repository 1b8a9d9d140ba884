"""A model whose parameters are the servers', at a version: what a trainer's attachment (torch.py) and a reader's
(reading.py) have in common."""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import warnings
import weakref
from fnmatch import fnmatchcase
from typing import Any, Callable, Container, Dict, Iterator, List, Mapping, Optional, Sequence, Tuple, Union

import torch
from torch import nn

from . import _blobs, _buffers, _log, _transfer, _window
from ._model import Slot, Unit, inner, own_name
from ._window import Memory, Window
from .errors import CairnError, EpochChanged, Invalid, NotFound, RolledBack, Stale, first_of
from .job import Job, RoundHandle
from .memory import can_lend
from .optim import changed_group, group_settings, why_no_moment
from .session import Session
from .spec import PAIRS, POLICIES, SNAPSHOT_RULES, JobSpec, Version, settings_of

_attached: "weakref.WeakSet[Held]" = weakref.WeakSet()  # in this process, of any session


class Held:
    """`_window` is there in stage 3 only. Subclasses set `_job`, and close."""

    _job: Job

    def __init__(self, session: Session, model: nn.Module, name: Optional[str], timeout: float):
        self.model, self.name = model, type(inner(model)).__name__.lower() if name is None else name
        self.timeout = timeout
        self.blobs: Dict[str, int] = {}  # bytes of each
        self._session = session
        self._slots: List[Slot] = []
        self._buffers: List[Slot] = []
        self._raw: Dict[str, torch.Tensor] = {}  # buffers that are kept as their bytes, by name
        self._window: Optional[Window] = None
        self._version = Version(0, 0)

    def close(self) -> None:
        raise NotImplementedError

    def __enter__(self) -> Any:
        return self

    def __exit__(self, *_: Any) -> None:
        self.close()

    def _judge_claims(self) -> None:
        """Nobody else's parameters, but for frozen ones of both, which nobody changes."""
        ours = {id(slot.parameter): slot for slot in self._slots}
        for other in [one for one in _attached if not (one.job.closed or one._session.closed)]:
            if inner(other.model) is inner(self.model):
                raise Invalid(f"this {type(inner(self.model)).__name__} is attached already: two jobs cannot drive the "
                              "same parameters; close() the other one first")
            shared = [(ours[id(theirs.parameter)], theirs) for theirs in other._slots if id(theirs.parameter) in ours]
            names = [(mine.name, theirs.name) for mine, theirs in shared if mine.trained or theirs.trained]
            if names:
                more = f" and {len(names) - 1} more" if len(names) > 1 else ""
                raise Invalid(f"{names[0][0]} of this model is {names[0][1]} of the one that is attached as job "
                              f"{other.name}{more}: each of two jobs would have its own, and the last one to step "
                              "would count here. Attach one module that has both: nn.ModuleDict({'a': one, 'b': the "
                              "other}), whose parts are called as before; or close() the other one first")

    def _claim(self) -> None:
        _attached.add(self)

    def _unclaim(self) -> None:
        _attached.discard(self)

    def __reduce_ex__(self, protocol: Any) -> Any:
        raise Invalid(f"an attachment is this process's part in job {self.name}, and is neither copied nor pickled: "
                      "copy or pickle m.model, in stage 3 take m.state_dict(); another process attaches by itself")

    def __repr__(self) -> str:
        where = "closed" if self.job.closed else f"stage {self.stage}, version {self._version.step}"
        return f"<{type(self).__name__} of job {self.name}: {type(inner(self.model)).__name__}, {where}>"

    @property
    def job(self) -> Job:
        return self._job

    @property
    def version(self) -> Version:
        """Of the parameters that the model has."""
        return self._version

    # ---- into the model's memory ----

    def _resident(self) -> List[Slot]:
        return [slot for slot in self._slots if self._window is None or slot not in self._window]

    def _start(self, slot: Slot, into: torch.Tensor) -> _transfer.Landing:
        return _transfer.Landing(self._job, self._version, slot.name, slot.wire, into, box=slot.box)

    def _lend(self, unit: Unit, had: Optional[_window.Loan]) -> Optional[_window.Loan]:
        return None

    def _before_load(self) -> None:
        if self._window is not None:
            self._window.release_all()
            self._window.end_loans()

    def _load(self, version: Version, is_as_left: bool = False) -> bool:
        """`is_as_left`: nobody wrote to the parameters here, so that frozen ones, which only another generation
        changes, are what they were, and stay: then it is True."""
        stays = is_as_left and version.generation == self._version.generation
        self._version = Version(0, 0)  # of none, should this fail
        self._before_load()
        coming = [slot for slot in self._resident() if not (stays and slot.kind == "frozen")]
        _transfer.load(self._job, version, [(slot, slot.parameter.data) for slot in coming], self.timeout)
        self._version = version
        return stays

    def _load_newest(self, at_least: Version) -> None:
        _transfer.of_newest(self._job, self._load, self.timeout, at_least)

    # ---- what it shows ----

    def _chosen(self, what: Union[str, nn.Module, torch.Tensor]) -> List[Slot]:
        if isinstance(what, str):
            found = [slot for slot in self._slots
                     if any(fnmatchcase(name, what) for name in [slot.name] + slot.aliases)]
        elif isinstance(what, (nn.Module, torch.Tensor)):
            inside = {id(one) for one in (what.parameters() if isinstance(what, nn.Module) else [what])}
            found = [slot for slot in self._slots if id(slot.parameter) in inside]
            what = type(what).__name__
        else:
            raise Invalid(f"gathered: {what!r} is no name, pattern, module or parameter")
        if not found:
            raise Invalid(f"gathered: {what!r} matches no parameter of the model")
        return found

    @contextlib.contextmanager
    def gathered(self, *what: Union[str, nn.Module, torch.Tensor]) -> Iterator[None]:
        """Stage 3: parameters that are read outside their module are here inside the block; keep it around backward
        too, and copy what is to be kept longer. Names, patterns, modules or parameters; one that is not of the
        model is an error."""
        chosen = {slot for one in what for slot in self._chosen(one)}
        if not chosen:
            raise Invalid("gathered: say which parameters, by names, patterns or modules")
        if self._window is None:
            yield
            return
        window = self._window
        unit = window.hold([slot for slot in self._slots if slot in chosen])
        try:
            yield
        finally:
            window.let_go(unit)

    def memory(self) -> Memory:
        """Bytes of gathered parameters, stage 3 (in the other stages all of them stay here), lent ones, and those of
        gradients on their way. m.job.stats() counts what was sent, and how much of it through shared memory."""
        root = sum(slot.parameter.numel() * slot.parameter.element_size() for slot in self._resident())
        return Memory(0, 0, 0, 0, root) if self._window is None else self._window.memory(root)

    def state_dict(self, plane: str = "param") -> Dict[str, torch.Tensor]:
        """The newest state, read from the servers: fp32 masters ("param"), or a plane of the optimizer ("exp_avg",
        "exp_avg_sq") or the moving averages ("ema"; of the groups that keep one), which only trained tensors have.
        Tied names show one tensor; the buffers are the model's own; a blob with the name of a module's extra state is
        that, as a tensor of uint8."""
        slots = [slot for slot in self._slots if slot.trained or plane == "param"]
        if plane == "ema":
            slots = [slot for slot in slots if self._job.has_plane(slot.name, plane)] or slots  # the first says why
        into = {slot: torch.empty(self._shape(slot), dtype=torch.float32) for slot in slots}

        def take(newest: Version) -> Dict[str, torch.Tensor]:
            _transfer.load(self._job, newest, list(into.items()), self.timeout, wire="f32", plane=plane, whole=True)
            return _blobs.extra_state(self._job, self.blobs, self.timeout, newest) if plane == "param" else {}

        extra = _transfer.of_newest(self._job, take, self.timeout)
        named = {name: into[slot] for slot in slots for name in [slot.name] + slot.aliases}
        if plane == "param":
            persistent = set(map(own_name, self.model.state_dict(keep_vars=True)))
            buffers = [(own_name(name), buffer) for name, buffer in self.model.named_buffers()]
            named.update((name, buffer) for name, buffer in buffers if name in persistent)
            named.update((name, value) for name, value in extra.items() if name in persistent)
        return named

    def _shape(self, slot: Slot) -> Sequence[int]:
        if slot.whole is not None:
            return slot.whole
        inside = self._window is not None and slot in self._window
        return self._window.shape(slot) if inside else slot.parameter.shape  # type: ignore[union-attr]


# ==== between steps ====

# What an attached model does between steps: it writes, amends, pauses, has snapshots made and reads state.

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
        Buffers and blobs (bytes) too; `plane` "exp_avg" or "exp_avg_sq" for moments, "ema" for averages, which a write
        of parameters leaves as they are. By one worker: the others have it with the next round."""
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
            warnings.warn(f"a forward pass changes {first_of(names)}, and no "
                          "snapshot, reader or export has that: give attach(…, buffers_every=1), so that rank 0 writes "
                          "them with each step, or 0 if nobody needs them", stacklevel=5)

    def _write_planes(self, planes: Mapping[str, Mapping[str, Any]]) -> Version:
        """As write(), of several planes: {plane: {name: tensor}}; but what is here stays as it is."""
        if self._round is not None:
            raise Invalid("a step is open: write before its first forward pass, or after step()")
        planes = {plane: {own_name(name): value for name, value in values.items()} for plane, values in planes.items()}
        self._judge_write({name for values in planes.values() for name in values})
        masters = {plane: self._masters(values, plane) for plane, values in planes.items()}
        for left in reversed(range(_transfer.TRIES)):
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
