"""A torch model that is not trained here: a reward model, a reference, inference, generation. Its parameters are those
of a job that others train, or of one that nobody does. The trainer's side is cairn.torch."""

from __future__ import annotations

import contextlib
import dataclasses
import time
from typing import Any, List, Mapping, Optional, Tuple, Union

from torch import nn

from . import _again, _blobs, _buffers, _model, _options, _transfer
from ._call import TIMEOUT_S
from ._held import Held
from ._model import UnitChoice, before_forward, buffers_of, judge_hooked, set_parts, slots_of, tensors_of, units_of
from ._warned import refuse_loading
from ._window import Window
from .env import launch
from .errors import Busy, Fenced, Invalid, NoMemory, NotFound, PlaceTaken, VersionGone
from .evaluation import match
from .operation import Lease
from .session import Session
from .spec import Init, JobSpec, Part, Tile, Version

_LOOK_S = 0.1  # between looks whether another worker made the job
_LEASE_S = 60.0  # of the version that stage 3 reads from; renewed by forward passes


class ReadModel(Held):
    """A model whose parameters are those of a job, at the version that is the newest when it is attached, until
    `refresh()` takes a newer one. Made by Session.attach without an optimizer.

    Forward passes and generate() go as they are. Stage 3 gathers units while they are used, also with gradients that go
    through the model to its inputs; the version is leased meanwhile, and where a pause was longer than the lease
    VersionGone says so. In the other stages all of the model is here.

    A job that does not exist is made if no parameter requires a gradient, by rank 0 and by every rank that holds
    parts: of frozen tensors, whose values are the model's, or those of `init` and `init_from`. Persistent buffers
    come with it; those that the job lacks stay.
    """

    def __init__(self, session: Session, model: nn.Module, *, name: Optional[str] = None, stage: int = 2,
                 units: UnitChoice = None, window: Optional[int] = None, wire_dtype: Any = None,
                 timeout: float = TIMEOUT_S, rank: Optional[int] = None,
                 workers: Union[None, int, Tuple[int, int]] = None, workers_min: Optional[int] = None,
                 world: Optional[int] = None, start_wait: Optional[float] = None,
                 parts: Mapping[str, Part] = {}, init: Mapping[str, Init] = {}, init_from: Optional[str] = None,
                 init_prefix: Optional[str] = None, init_nonfinite_ok: bool = False, init_extra_ok: bool = False,
                 must_exist: bool = False, **others: Any):
        if others:
            raise Invalid(f"{', '.join(others)}: of training, and attach(model) without an optimizer only reads; leave "
                          "it out, or give an optimizer")
        _options.judge(model, name, units, parts, True, None, None, must_exist)
        super().__init__(session, model, name, timeout)
        self.stage = _options.stage_of(stage)
        self._slots, self._buffers = slots_of(model, wire_dtype), buffers_of(model)
        self._judge_claims()
        self._raw = _buffers.raw_of(model)
        set_parts(self._slots, parts)
        _model.set_initializers(self._slots + self._buffers, init)
        modules = units_of(model, self._slots, units)
        window = _options.window_size(window, self.stage, modules)
        if self.stage == 3:
            judge_hooked(model, modules)
        self._lease: Optional[Lease] = None
        self._leased = 0.0  # when
        self._hooks: List[Any] = []
        state = self._has_state()
        if state is None and must_exist:
            raise _again.missing(self.name)
        if not state:
            spec = JobSpec([], (), init_from=init_from, init_prefix=init_prefix, init_nonfinite_ok=init_nonfinite_ok,
                           init_extra_ok=init_extra_ok, **launch(rank, workers, workers_min, world, start_wait))
            self._see_to_it(spec, state is not None)
        self._job = session.open_reader(self.name, timeout)
        self._claim()
        try:
            self._match(model)
            _model.materialize(model, self._slots + self._buffers, lambda slot: self.stage == 3 and bool(slot.units))
            self._places = _buffers.Places(model, "m.refresh() does not bring values to")
            self._hooks = refuse_loading(model, "m.refresh() takes newer values")
            if self.stage == 3:
                self._window = Window(modules, window, self._start, self._lend, self._gone, lambda: self.timeout,
                                      lambda: None)
                self._hooks += self._window.hooks
                self._hooks.append(before_forward(model, lambda *_: self._before_forward()))
            self.refresh()
        except BaseException:
            self.close()
            raise

    def close(self) -> None:
        """Leaves the job. The model keeps what it has; in stage 3 that is the root unit only."""
        try:
            if not self._job.closed:
                self._end_lease()
        finally:
            self._job.close()
            self._unclaim()
            for hook in self._hooks:
                hook.remove()
            self._hooks, self._window = [], None

    # ---- a job of its own ----

    def _has_state(self) -> Optional[bool]:
        """Whether the job has its state, or gets it from a trainer; None: there is no job."""
        try:
            with self._session.open_reader(self.name, self.timeout) as job:
                return job.describe().initialized or any(tensor.kind == "trained" for tensor in job.tensors())
        except NotFound:
            return None

    def _see_to_it(self, spec: JobSpec, is_there: bool) -> None:
        """A job of frozen tensors is made by rank 0, and by every worker that holds parts: without one of them it gets
        no state. So they ask for that, and not whether there is the job: the first of them made it. Others wait, and
        so does who has no values for a job that is there."""
        trained = any(slot.trained for slot in self._slots)
        makes = not trained and (spec.rank == 0 or any(slot.box is not None for slot in self._slots))
        if makes and is_there and spec.init_from is None and _model.missing(self._slots + self._buffers):
            makes = False
            if any(slot.box is not None for slot in self._slots):
                _model.judge_values(self.name, self._slots + self._buffers)  # nobody else has its part
        deadline = time.monotonic() + self.timeout
        while not makes and self._has_state() is None:
            if trained or time.monotonic() > deadline:
                raise self._not_there(trained)
            time.sleep(_LOOK_S)
        if makes:
            with contextlib.suppress(Fenced, PlaceTaken):  # another process with this rank came, which makes it
                self._make(spec)

    def _not_there(self, trained: bool) -> NotFound:
        if trained:
            return NotFound(f"there is no job {self.name} to read; its trainer makes it, by attach(model, optimizer). "
                            "To keep a model there that nobody trains: model.requires_grad_(False)")
        return NotFound(f"there is no job {self.name} to read after {self.timeout:g} s: rank 0 makes it, and did not")

    def _make(self, spec: JobSpec) -> None:
        """Together with the others who do; then they are gone."""
        slots = self._slots + self._buffers
        tiles = [Tile(slot.name, slot.box) for slot in self._slots if slot.box is not None]
        brings = (spec.rank == 0 or bool(tiles)) and spec.init_from is None
        if brings:
            _model.judge_values(self.name, slots)
        tensors, listed = [tensor for slot in slots for tensor in tensors_of(slot, None)], _buffers.listed(self._raw)
        spec = dataclasses.replace(spec, tensors=tensors + _buffers.tensors(self._raw) + _blobs.tensors(listed))
        with self._session.open_worker(self.name, spec, self.timeout) as job:
            if tiles:
                job.tiles(tiles, spec.world, self.timeout)
            if brings and not job.describe().initialized:
                _transfer.put(job, slots)
            if spec.rank == 0:
                _blobs.put(job, {**listed, **{name: _buffers.bytes_of(one) for name, one in self._raw.items()}})
            job.init_done(self.timeout)
            job.version_wait(timeout=self.timeout)

    def _match(self, model: nn.Module) -> None:
        match(self._job, self._slots)
        there = {tensor.name: tensor for tensor in self._job.tensors() if tensor.kind == "buffer"}
        self._buffers = [slot for slot in self._buffers
                         if slot.name in there and there[slot.name].shape == tuple(slot.parameter.shape)]
        self._raw = _buffers.there(self._job, self._raw)
        _model.judge_buffers(model, self._buffers)
        if any(tensor.name == _blobs.BLOB for tensor in self._job.tensors()):
            _blobs.judge(self._job, model, _blobs.digest_of(model), self.timeout)

    # ---- versions ----

    def refresh(self, newer_than: Optional[Version] = None, timeout: Optional[float] = None) -> Version:
        """Takes the newest version (with newer_than: once there is a newer one), which it returns."""
        least = Version(0, 0) if newer_than is None else Version(newer_than.generation, newer_than.step + 1)

        def take(version: Version) -> None:
            if version != self._version:
                self._end_lease()
                self._take(version)

        _transfer.of_newest(self._job, take, self.timeout if timeout is None else timeout, least)
        if self.stage < 3:
            self._end_lease()  # all of it is here
        return self._version

    def _take(self, version: Version) -> None:
        try:
            self._lease, self._leased = self._job.lease(version, _LEASE_S, self.timeout), time.monotonic()
        except (Busy, NoMemory):  # no room for it: training may overtake this
            pass
        self._load(version)
        self._places.follow(self._buffers, self._raw)
        buffers = [(slot, slot.parameter) for slot in self._buffers]
        _transfer.load(self._job, version, buffers, self.timeout)
        _buffers.load(self._job, version, self._raw, self.timeout)

    def _end_lease(self) -> None:
        lease, self._lease = self._lease, None
        if lease is not None:
            lease.__exit__()

    def _gone(self, why: Exception) -> VersionGone:
        return VersionGone(f"version {self._version.step} of job {self.name} is not kept any more, training went on: "
                           f"m.refresh() takes the newest ({why})")

    def _before_forward(self) -> None:
        assert self._window is not None
        if self._lease is not None and time.monotonic() - self._leased > _LEASE_S / 3:
            try:
                self._lease.renew(timeout=self.timeout)
            except VersionGone as gone:
                self._lease = None
                raise self._gone(gone) from gone
            self._leased = time.monotonic()
        self._window.release_all()
        self._window.begin_pass()

    # ---- what only a trainer does ----

    def _refuse(self, *_: Any, **__: Any) -> Any:
        raise Invalid(f"job {self.name} is only read here, since attach was given no optimizer; nothing is trained or "
                      "written by this model")

    begin = step = scale = no_sync = micro_end = write = amend = snapshot = resume = _refuse
