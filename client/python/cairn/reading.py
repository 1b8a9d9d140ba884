"""A torch model that is not trained here: a reward model, a reference, inference, generation. Its parameters are those
of a job that others train, or of one that nobody does. The trainer's side is cairn.torch."""

from __future__ import annotations

import dataclasses
import time
from typing import Any, List, Mapping, Optional

from torch import nn

from . import _meta, _options, _transfer
from ._held import TRIES, Held
from ._model import UnitChoice, buffers_of, set_parts, slots_of, tensors_of, units_of
from ._window import Window
from .env import env
from .errors import Busy, Invalid, NoMemory, NotFound, VersionGone
from .evaluation import match
from .session import TIMEOUT_S, Lease, Session
from .spec import Init, JobSpec, Part, Tile, Version

_LEASE_S = 60.0  # of the version that stage 3 reads from; renewed by forward passes


class ReadModel(Held):
    """A model whose parameters are those of a job, at the version that is the newest when it is attached, until
    `refresh()` takes a newer one. Made by Session.attach without an optimizer.

    Forward passes and generate() go as they are. Stage 3 gathers units while they are used, also with gradients that go
    through the model to its inputs; the version is leased meanwhile, and where a pause was longer than the lease
    VersionGone says so. In the other stages all of the model is here.

    A job that does not exist is made if no parameter requires a gradient: of frozen tensors, whose values are the
    model's, or those of `init` and `init_from`. Persistent buffers come with it; those that the job lacks stay.
    """

    def __init__(self, session: Session, model: nn.Module, *, name: Optional[str] = None, stage: int = 2,
                 units: UnitChoice = None, window: Optional[int] = None, wire_dtype: Any = None,
                 timeout: float = TIMEOUT_S, rank: Optional[int] = None, workers_min: Optional[int] = None,
                 parts: Mapping[str, Part] = {}, init: Mapping[str, Init] = {}, init_from: Optional[str] = None,
                 init_prefix: Optional[str] = None, init_nonfinite_ok: bool = False, **others: Any):
        if others:
            raise Invalid(f"{', '.join(others)}: of training, and attach(model) without an optimizer only reads; leave "
                          "it out, or give an optimizer")
        _options.judge(model, name, units, parts, True, None, None)
        super().__init__(session, model, name, timeout)
        self.stage = _options.stage_of(stage)
        self._slots, self._buffers = slots_of(model, wire_dtype), buffers_of(model)
        set_parts(self._slots, parts)
        _meta.set_initializers(self._slots + self._buffers, init)
        modules = units_of(model, self._slots, units)
        window = _options.window_size(window, self.stage, modules)
        self._lease: Optional[Lease] = None
        self._leased = 0.0  # when
        self._hooks: List[Any] = []
        there = _meta.tensors_of_job(session, self.name, timeout)
        if there is None:
            here = env()
            self._make(JobSpec([], (), here.rank if rank is None else rank,
                               here.world if workers_min is None else workers_min, init_from=init_from,
                               init_prefix=init_prefix, init_nonfinite_ok=init_nonfinite_ok))
        self._job = session.open_reader(self.name, timeout)
        self._claim()
        try:
            self._match(model)
            _meta.materialize(model, self._slots + self._buffers, lambda slot: self.stage == 3 and bool(slot.units))
            if self.stage == 3:
                self._window = Window(modules, window, self._start, self._lend, self._gone, lambda: self.timeout,
                                      lambda: None)
                self._hooks = [model.register_forward_pre_hook(lambda *_: self._before_forward())] + self._window.hooks
            self.refresh()
        except BaseException:
            self.close()
            raise

    def close(self) -> None:
        """Leaves the job. The model keeps what it has; in stage 3 that is the root unit only."""
        if not self._job.closed:
            self._end_lease()
        self._job.close()
        self._unclaim()
        for hook in self._hooks:
            hook.remove()
        self._hooks, self._window = [], None

    # ---- a job of its own ----

    def _make(self, spec: JobSpec) -> None:
        """The job of frozen tensors, by as many workers as there are; then they are gone."""
        slots = self._slots + self._buffers
        if any(slot.trained for slot in self._slots):
            raise NotFound(f"there is no job {self.name} to read; its trainer makes it, by attach(model, optimizer). "
                           "To keep a model there that nobody trains: model.requires_grad_(False)")
        tiles = [Tile(slot.name, slot.box) for slot in self._slots if slot.box is not None]
        brings = (spec.rank == 0 or bool(tiles)) and spec.init_from is None
        if brings:
            _meta.judge_values(self.name, slots)
        tensors = [tensor for slot in slots for tensor in tensors_of(slot, None)]
        spec = dataclasses.replace(spec, tensors=tensors)
        with self._session.open_worker(self.name, spec, self.timeout) as job:
            if tiles:
                job.tiles(tiles, spec.workers_min, self.timeout)
            if brings and not job.describe().initialized:
                _transfer.put(job, slots)
            job.init_done(self.timeout)
            job.version_wait(timeout=self.timeout)

    def _match(self, model: nn.Module) -> None:
        match(self._job, self._slots)
        there = {tensor.name: tensor for tensor in self._job.tensors() if tensor.kind == "buffer"}
        self._buffers = [slot for slot in self._buffers
                         if slot.name in there and there[slot.name].shape == tuple(slot.parameter.shape)]
        _meta.judge_buffers(model, self._buffers)

    # ---- versions ----

    def refresh(self, newer_than: Optional[Version] = None, timeout: Optional[float] = None) -> Version:
        """Takes the newest version (with newer_than: once there is a newer one), which it returns."""
        least = Version(0, 0) if newer_than is None else Version(newer_than.generation, newer_than.step + 1)
        for left in reversed(range(TRIES)):
            version = self._job.version_wait(least, self.timeout if timeout is None else timeout)
            if version == self._version:
                return version
            self._end_lease()
            try:
                self._take(version)
                break
            except VersionGone:
                if left == 0:
                    raise
        if self.stage < 3:
            self._end_lease()  # all of it is here
        return self._version

    def _take(self, version: Version) -> None:
        try:
            self._lease, self._leased = self._job.lease(version, _LEASE_S, self.timeout), time.monotonic()
        except (Busy, NoMemory):  # no room for it: training may overtake this
            pass
        self._load(version)
        buffers = [(slot, slot.parameter) for slot in self._buffers]
        _transfer.load(self._job, version, buffers, self.timeout)

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
