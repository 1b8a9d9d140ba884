"""PyTorch on Cairn: attach a model, and its gradients go to the servers as autograd makes them.

Works with torch 1.13 and later, on host memory and on NVIDIA cards, by the device that each parameter is on: gradients
are pushed from there and parameters fetched there, on a stream beside the trainer's. A device that the library does not
work on goes through the host. No real card has been tried.

Stages. 0 and 1: gradients of a step's backward passes are added up here, in fp32, and pushed once; in 0 one shard holds
all of the state. 2: each backward pass is pushed. 3: as 2, and a unit's parameters are here only while they are
used. With one backward pass a step all four give the same bits, else 0 and 1 do, and 2 and 3.

A step's gradient is the mean over its backward passes and over the workers: give each micro-batch its own mean loss,
undivided. Parameters that get no gradient count as 0.

Elastic workers with the same bits: with global_batch=K a step is K backward passes over all workers, one for each k of
m.begin().micro_batches. What is random in one is to come of micro_seed(k): then the bits do not depend on how many
workers there were, nor on when they came and went. Who leaves by itself does so between two steps.

Tensor parallelism is the model's: it cuts its layers and sends activations between the workers of a team, and says
by `parts` where its parameters lie. Gradients and parameters go through the servers, each worker's own part.

torch.compile is seen through, of the model or of its blocks: names are those without it. Compile, then attach. DDP and
FSDP are not, since they do themselves what the servers do: attach the module inside.

Buffers begin as those of rank 0, which the servers keep; afterwards each worker has its own (BatchNorm's statistics are
of its batches, as with DistributedDataParallel without broadcasts), and rank 0 writes its own with each step, see
buffers_every of attach. Integer buffers are kept to the bit.
"""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import logging
import time
import warnings
from typing import Any, Callable, Container, Dict, Iterator, List, Mapping, Optional, Sequence, Set, Tuple, Union

import torch
from torch import nn

from . import _again, _blobs, _buffers, _changed, _log, _model, _options, _transfer, _window
from ._call import TIMEOUT_S
from ._found import Pouring
from ._gradients import Gradients, Hook, Together
from ._held import Between, goes_on
from ._model import (Slot, Unit, UnitChoice, before_forward, buffers_of, judge_hooked, set_parts, slots_of, tensors_of,
                     units_of)
from ._optimizers import KEEP_IN_GRAD, TorchOptimizers, clear_grad, grad_of, judge_scaled
from ._warned import Clipping, Stillness, Untouched, refuse_loading
from ._window import Memory, Window
from .env import launch
from .errors import CairnError, EpochChanged, Invalid, Refused, RolledBack, Stale, Timeout, Unsupported, VersionGone
from .evaluation import Reader
from .job import RoundHandle, weight_to_c
from .optim import FromTorch, Optimizer, from_torch
from .reading import ReadModel
from .records import Result, Round
from .session import Session
from .spec import Group, Init, JobSpec, Part, Tile, Version, at_least
from .timeline import Timeline

__all__ = ["AttachedModel", "ReadModel", "Reader", "attach", "Memory"]

_ADD_UP = "To add gradients up, as torch does: with m.no_sync(): around all backward passes of a step but the last"
_NO_DDP = "(DistributedDataParallel around an attached model makes one, too: leave it out)"
_LAST_S = 5.0  # for the buffers, when a job is closed
_PUSHED = {torch.float32: "f32", torch.bfloat16: "bf16"}


def attach(session: Session, model: nn.Module, optim: Any, **options: Any) -> Union["AttachedModel", ReadModel]:
    """See Session.attach."""
    _options.judge_names(options, AttachedModel.__init__)
    return ReadModel(session, model, **options) if optim is None else AttachedModel(session, model, optim, **options)


def _taken(optim: Any) -> Any:
    """A torch optimizer as one of the servers'."""
    is_torch = isinstance(optim, (torch.optim.Optimizer, type)) or not hasattr(optim, "group")
    return from_torch(optim) if is_torch else optim


def _groups(optim: Any, slots: List[Slot]) -> Tuple[List[Group], Dict[str, str]]:
    trained = {slot.name: slot.parameter for slot in slots if slot.trained}
    if not trained:
        raise Invalid("no parameter of the model requires a gradient; there is nothing to train: to read or to keep "
                      "such a model on the servers leave the optimizer out, attach(model)")
    if isinstance(optim, FromTorch):
        return optim.group_parameters(trained)
    return optim.group(list(trained))


def _listed(optim: Any, slots: List[Slot]) -> List[Slot]:
    """In the order of the torch optimizer, which an export has its state in; else that of the model."""
    order = [number for group in getattr(optim, "order", ()) for number in group]
    place = {number: i for i, number in enumerate(order)}
    return sorted(slots, key=lambda slot: place.get(id(slot.parameter), len(place)))


class AttachedModel(Between):
    """A model whose parameters and optimizer are the servers'. Made by Session.attach.

    A step: forward (which begins the round and brings the round's parameters), backward, step(). EpochChanged may
    come out of any of the three: somebody came or went, nothing was applied; do the step again. Address the
    batch by `begin()`'s index, rank and world where that is to give the same batch again, and another one after a
    round that was skipped (step().applied is False, the log says it). RolledBack: the job was restored from a
    snapshot and is open again here; go on from its `step`.
    """

    def __init__(self, session: Session, model: nn.Module, optim: Union[Optimizer, "torch.optim.Optimizer"], *,
                 name: Optional[str] = None, stage: int = 2, units: UnitChoice = None, window: Optional[int] = None,
                 wire_dtype: Any = None, timeout: float = TIMEOUT_S, rank: Optional[int] = None,
                 workers: Union[None, int, Tuple[int, int]] = None, workers_min: Optional[int] = None,
                 world: Optional[int] = None, start_wait: Optional[float] = None,
                 parts: Mapping[str, Part] = {}, counts: bool = True,
                 blobs: Mapping[str, Any] = {}, mapped_gradients: Optional[bool] = None,
                 mapped_parameters: Optional[bool] = None, init: Mapping[str, Init] = {}, must_exist: bool = False,
                 resume: Optional[str] = None, must_not_exist: bool = False, takeover: bool = False,
                 steps_missed: Mapping[str, int] = {}, buffers_every: Optional[int] = None,
                 _initial: Optional[Pouring] = None, **state: Any):
        here = launch(rank, workers, workers_min, world, start_wait)
        _options.judge(model, name, units, parts, counts, mapped_gradients, mapped_parameters, must_exist,
                       resume, must_not_exist, takeover)
        _options.judge_max_norm(model)
        state["buffers_every"] = _buffers.every(model, buffers_every)
        if state["buffers_every"] == 0:
            _options.warn_of_statistics(model)
        super().__init__(session, model, name, timeout)
        if must_exist and resume is None:
            _again.judge(session, self.name, timeout)
        self.stage = _options.stage_of(stage)
        self._slots, self._buffers = slots_of(model, wire_dtype), buffers_of(model)
        self._judge_claims()
        self._raw = _buffers.raw_of(model)
        set_parts(self._slots, parts)
        _model.set_initializers(self._slots + self._buffers, init)
        _model.judge_buffers(model, self._buffers)
        self._counts = counts
        opaque = _blobs.taken(blobs, [*(slot.name for slot in self._slots + self._buffers), *self._raw])
        _blobs.warn_of_extra_state(model, opaque)
        opaque.update(_blobs.digest_of(model))
        if self._raw:  # a job of before such lists goes on without
            there = _model.tensors_of_job(session, self.name, timeout)
            opaque.update(_buffers.listed(self._raw) if there is None or _buffers.LIST in there else {})
        self.blobs = {name: len(value) for name, value in opaque.items()}  # bytes of each
        modules = units_of(model, self._slots, units)
        judge_hooked(model, modules if self.stage == 3 else ())
        window = _options.window_size(window, self.stage, modules)
        self._new_lender = lambda: _window.Lender(
            _options.lendable_units(mapped_parameters, model, modules, self.stage), bool(mapped_parameters))
        self._lender = self._new_lender()
        optim = _taken(optim)
        groups, group_of = _groups(optim, self._slots)
        first = here["rank"] == 0 or bool(parts)
        own = self._slots + self._buffers  # what of the initial state is this model's
        if _initial is not None:
            own = _model.without(own, _initial.names, _model.tensors_of_job(session, self.name, timeout))
        if state.get("init_from") is None:
            _model.find_source(session, self.name, own, first, timeout, resume)
        tensors = [tensor for slot in _listed(optim, self._slots) + self._buffers
                   for tensor in tensors_of(slot, group_of.get(slot.name))] + _blobs.tensors(opaque)
        tensors += _buffers.tensors(self._raw)
        tensors = _options.with_missed(tensors, steps_missed)
        self._spec = JobSpec(tensors, groups, stage=stage, **here, **state)
        self.clip_norm = self._spec.clip_norm or 0.0
        self._micro_batches = at_least(1, "micro_batches", self._spec.micro_batches)
        shared = _options.gradient_bytes(mapped_gradients, self._slots, self.stage,
                                         max(self._micro_batches, self._spec.global_batch), modules, window)
        self._gradients = Gradients(session)
        self._judge_sharing = mapped_gradients is None  # after the first step
        self._timeline: Optional[Timeline] = None  # set by it
        self._round: Optional[RoundHandle] = None
        self._dropped: Optional[RoundHandle] = None  # which the servers may wait for still
        self._failure: Optional[CairnError] = None  # of a hook, raised by what the trainer calls next
        self._rank = self._spec.rank  # dense, of the last round
        self._world = 0  # of the last round; 0: there was none
        self._revision = 0  # of the job, in the last round
        self._refused: Set[Slot] = set()  # frozen in that revision
        self._driver = optim.driver if isinstance(optim, FromTorch) else None
        self._stillness = Stillness()
        self._untouched = Untouched(self.name, self._slots, group_of, groups, "missing_gradients" in state)
        self._local = False
        self._touched = 0  # the last round to which this worker gave something
        self._forget_gradients()
        self._opened_with = self._spec  # which no amendment changes
        self.imported: Any = None  # checkpoint.Imported, of import_checkpoint
        if _initial is not None and self._spec.rank == 0:
            _initial.begin()  # beside the shards, which take memory for the job
        self._job = _again.open_worker(session, self.name, self._spec, timeout, must_exist, resume,
                                       must_not_exist, takeover)
        self._claim()
        try:
            self._take_terms()
            with self._gradients.sharing(shared):  # which takes memory, while state is on its way
                is_asked = must_exist or takeover or resume is not None
                self._bring_initial_state(own, opaque, _initial, compares=not is_asked)
        except BaseException:
            self._unclaim(), self._job.close(), self._gradients.close()
            raise
        _model.materialize(model, self._slots + self._buffers, lambda slot: self.stage == 3 and bool(slot.units))
        # Before any parameter is let go: autograd notes its shape now.
        self._gradient_hooks = [Hook(slot.parameter, functools.partial(self._took_gradient, slot))
                                for slot in self._slots if slot.trained]
        self._watch(model)
        self._sent_buffers = _buffers.Written(model, self._buffers, self._raw, self._spec.buffers_every,
                                              buffers_every is not None)
        self._gives_buffers = self._spec.rank == 0
        self._optimizers = TorchOptimizers(self._slots, optim, self._pushed, lambda: self._given)
        self._hooks: List[Any] = [self._optimizers, Clipping(self._slots, lambda: self.clip_norm)]
        try:
            self._hooks.append(before_forward(model, lambda *_: self._before_forward()))
            self._hooks += refuse_loading(
                model, "Load before attach; to change the values of a job: m.write({name: tensor})")
            self._take_initial_state()
            _blobs.judge(self._job, model, opaque, timeout)
            if self.stage == 3:
                self._window = Window(modules, window, self._start, self._lend, self._gone,
                                      lambda: self.timeout, lambda: self._timeline)
                session._readers.add(self._end_loans)
            self._values = [_changed.Values(slot for slot in self._resident() if slot in self._fixed and slot.trained
                                            is trained) for trained in (True, False)]
            self.resume()
        except BaseException:
            self.close()
            raise

    def _watch(self, model: nn.Module) -> None:
        """What may become another than it is: said before the next commit."""
        self._structure = _changed.Structure(model, self._slots)
        self._dtypes = [slot.parameter.dtype for slot in self._slots]
        self._frozen = [slot for slot in self._slots if not slot.trained]
        self._trained = [slot for slot in self._slots if slot.trained]
        self._fixed = set(_options.not_written(model, self._slots))
        self._is_told_of_gathered = False
        self._values: List[_changed.Values] = []  # of trained and of frozen ones, when the window is there

    def close(self) -> None:
        """Leaves the job. The model keeps what it has; in stage 3 that is the root unit only. Before or after the
        session is closed."""
        if not self._end_loans():  # behind the pass that reads what is lent
            return self._job._session._close_later(self.close)
        self._write_last_buffers()
        self._job.close()
        self._job._session._readers.discard(self._end_loans)
        self._unclaim()
        for hook in self._gradient_hooks + self._hooks + (self._window.hooks if self._window is not None else []):
            hook.remove()
        self._gradient_hooks, self._hooks, self._window = [], [], None
        self._gradients.close()

    def _take_terms(self) -> None:
        """Of a job that was amended, and is open with the spec as it was: its terms are the job's."""
        now, given = self._job.describe(), self._spec
        if now.revision == 0:
            return
        wires = {tensor.name: tensor.wire for tensor in self._job.tensors()}
        rewired = [slot for slot in self._slots + self._buffers if wires.get(slot.name, slot.wire) != slot.wire]
        for slot in rewired:
            slot.wire = wires[slot.name]
        terms = ("micro_batches", "global_batch", "client_state_max", "seed", "clip_norm")
        self._spec = dataclasses.replace(given, **{name: getattr(now, name) for name in terms})
        self._micro_batches, self.clip_norm = now.micro_batches, now.clip_norm
        if min(self.stage, now.stage) < 2:  # 2 and 3 are this worker's affair, with the same bits
            self.stage = min(now.stage, 2)
        self._lender = self._new_lender()
        changed = [f"{name} is {getattr(now, name)!r} ({getattr(given, name)!r} was given)" for name in terms
                   if getattr(now, name) != (getattr(given, name) or 0)]
        changed += [f"stage is {now.stage} ({given.stage} was given)"] * (now.stage != given.stage)
        changed += [f"the wire dtype of {slot.name} is {slot.wire}" for slot in rewired[:1]]
        if changed:
            logging.getLogger("cairn").warning("job %s was amended since its script was written, and the job's terms "
                                               "are taken: %s", self.name, ", ".join(changed))

    def _write_last_buffers(self) -> None:
        if self._job.closed or self._session.closed:
            return
        before, self.timeout = self.timeout, min(self.timeout, _LAST_S)
        try:
            changed = self._sent_buffers.changed() if self._spec.buffers_every > 0 and self._round is None else {}
            if changed and self._gives_buffers:
                self._write_buffers(changed)
        except CairnError as failure:
            _log.without_buffers(self.name, self._version.step, str(failure))
        finally:
            self.timeout = before

    def _declare_tiles(self) -> bool:
        """Whether tensors are held in parts: every worker is to say so, and brings its own."""
        tiles = [Tile(slot.name, slot.box) for slot in self._slots if slot.box is not None]
        if tiles:
            self._job.tiles(tiles, self._spec.world, self.timeout)
        return bool(tiles)

    def _bring_initial_state(self, own: Sequence[Slot], opaque: Mapping[str, bytes], initial: Optional[Pouring],
                             compares: bool) -> None:
        """As far as it is for this worker to bring, and the job has none: `own` of the model, the rest of `initial`.
        `compares`: nobody asked for a job that is there, so the log says if it began with other values."""
        has_parts = self._declare_tiles()
        if self._job.describe().initialized:
            if compares and self._spec.rank == 0 and not has_parts and initial is None \
                    and self._spec.init_from is None and not any(slot.parameter.is_meta for slot in own):
                _transfer.put(self._job, own)  # refused by the library, which keeps the digest for init_done
                self._bring_blobs(opaque)
            return
        if (self._spec.rank == 0 or has_parts) and self._spec.init_from is None:
            _model.judge_values(self.name, own)
            if initial is not None and self._spec.rank == 0:
                initial.put(self._job)
            _transfer.put(self._job, own)
        if self._spec.rank == 0:
            self._bring_blobs(opaque)

    def _bring_blobs(self, opaque: Mapping[str, bytes]) -> None:
        _blobs.bring(self._job, {**opaque, **{name: _buffers.bytes_of(one) for name, one in self._raw.items()}})

    def _load(self, version: Version, is_as_left: bool = False) -> bool:
        frozen_stay = super()._load(version, is_as_left)
        for values in self._values[:1 if frozen_stay else 2]:
            values.note()
        return frozen_stay

    def _take_initial_state(self) -> None:
        self._job.init_done(self.timeout)
        version = self._job.version_wait(timeout=self.timeout)
        self._sent_buffers.follow()
        _transfer.load(self._job, version, [(slot, slot.parameter) for slot in self._buffers], self.timeout)
        _buffers.load(self._job, version, self._raw, self.timeout)
        self._sent_buffers.note()

    # ---- the parameters ----

    def _lend(self, unit: Unit, had: Optional[_window.Loan]) -> Optional[_window.Loan]:
        """Of the round that is open, whose version stays."""
        if self._round is not None and self._round.info.version == self._version:
            return had or self._lender.lend(self._job, self._version, unit)
        return None

    def _before_load(self) -> None:
        super()._before_load()
        self._lender.next_version()

    def _end_loans(self, by_failure: bool = False) -> bool:
        """False: a pass of the model is under way, which reads them; `by_failure`: this thread's own is over."""
        if self._window is not None and self._window.lends:
            if _window.is_pass_under_way(but_here=by_failure):
                return False
            for device in {slot.device for slot in self._slots}:
                _transfer.settle_passes(device)
            self._window.end_loans()
        return True

    def _gone(self, why: CairnError) -> CairnError:
        """What goes out of a pass that cannot have its parameters."""
        if isinstance(why, RolledBack):
            self._roll_back(why)
            return why
        self._drop_round()
        return self._others_went_on(why)

    def _others_went_on(self, why: Exception) -> EpochChanged:
        return EpochChanged(f"the others went on without this worker, the step is to be done again: {why}")

    @goes_on
    def resume(self) -> int:
        """Takes the servers' newest parameters, forgets gradients, and returns the step that comes next. What was
        pushed in an open round is withdrawn: the others do that step again."""
        self._withdraw()
        self._load_newest(Version(0, 0))
        self._drive(self._version.step)
        return self._version.step

    def memory(self) -> Memory:
        """Bytes of gathered parameters, stage 3 (in the other stages all of them stay here), lent ones, and those of
        gradients on their way. m.job.stats() counts what was sent, and how much of it through shared memory."""
        self._gradients.reclaim()
        return super().memory()._replace(gradient_bytes=self._gradients.nbytes,
                                         gradient_overflow_bytes=self._gradients.overflow,
                                         gradient_peak_bytes=self._gradients.peak)

    # ---- a round ----

    @goes_on
    def begin(self) -> Round:
        """The round that is open, or the next one; the first forward pass of a step calls it by itself. Its index,
        rank and world say which batch is this worker's."""
        self._raise_failure()
        return self._begun()

    def _begun(self, is_computed: bool = False) -> Round:
        """`is_computed`: of gradients that are there, from parameters that the model has."""
        self._job._living()
        if self._round is None:
            opened = self._job.round_begin(self.timeout)
            if opened.info.round == self._touched:  # it was dropped half done, and pushes cannot be taken back
                self._give_up(opened)
                opened = self._job.round_begin(self.timeout)
            if opened.info.version != self._version:
                if is_computed:  # by a pass that began no round: of a part of the model, or in eval mode
                    raise self._others_went_on(Stale("the forward pass was at an earlier version"))
                written = {slot: slot.parameter.detach().clone() for slot in self._written_here()}
                try:
                    self._load(opened.info.version)
                except (VersionGone, Stale) as gone:
                    raise self._others_went_on(gone) from gone
                self._judge_undone(written)
            self._dropped = None
            self._round, self._rank, self._world = opened, opened.info.rank, opened.info.world
            if opened.info.revision != self._revision:  # somebody has amended the job
                self._revision, self._refused = opened.info.revision, set()
        return self._round.info

    def _roll_back(self, rolled: RolledBack) -> None:
        """Opens the job again, at the step that it was restored to. The start is with those of the last round."""
        if rolled.step is not None or not self._end_loans(by_failure=True):
            return  # it is open; or another thread's pass reads what is lent: the next call does it
        self._drop_round()
        self._dropped = None
        self._before_load()
        self._job.close()
        self._gradients.reclaim()
        self._touched, self._revision, self._refused = 0, 0, set()
        rates = self._job._rates
        spec = self._opened_with
        if spec.world > 0 and self._world > 0:
            spec = dataclasses.replace(spec, world=self._world)
        self._job = _again.after_restore(self._session, self.name, spec, self.timeout)
        self._take_terms()
        for group, lr in rates.items():
            self._job.group_lr(group, lr)
        self._declare_tiles()
        self._take_initial_state()
        self._load_newest(Version(0, 0))
        rolled.step = self._version.step

    def _give_up(self, round_: RoundHandle) -> None:
        """For all: the others do that step again, too."""
        try:
            round_.abandon(self.timeout)
        except Stale:  # a commit that was interrupted stands: it ends as it ends
            with contextlib.suppress(EpochChanged, Stale):
                round_.commit(timeout=self.timeout)

    def _withdraw(self) -> None:
        """What was pushed in an open round: the others do that step again."""
        is_given = self._round is not None and self._round.info.round == self._touched
        if self._round is not None and is_given:
            self._give_up(self._round)
        self._drop_round()
        if is_given:
            self._dropped = None

    def _end_dropped(self) -> None:
        """A round of which this worker wants no more, though nothing was given to it: between two steps it has none."""
        dropped, self._dropped = self._dropped, None
        if dropped is not None:
            with contextlib.suppress(EpochChanged, Stale):
                self._give_up(dropped)

    def _drop_round(self) -> None:
        self._dropped = self._round or self._dropped
        self._round = self._failure = None
        self._forget_gradients()

    @goes_on
    def _before_forward(self) -> None:
        if not (torch.is_grad_enabled() and self.model.training):
            if self._window is not None and self._round is None:  # nothing keeps the version while others go on
                newest = self._job.version_wait(timeout=self.timeout)
                if newest != self._version:
                    self._load_newest(newest)
            return
        self._judge_model()
        for hook in self._gradient_hooks:
            hook.be_last()
        if self._pushed_in_pass and not self._local:
            self._end_pass()
        self.begin()
        if self._window is not None:
            self._window.release_all()
            self._window.begin_pass()

    def scale(self, loss: torch.Tensor) -> torch.Tensor:
        """The loss times the round's loss scale: m.scale(loss).backward()."""
        self._scaled = True
        scale = self.begin().loss_scale
        return loss if scale == 1.0 else loss * scale

    def _forget_gradients(self) -> None:
        self._passes = 0  # backward passes that are over
        self._together = Together()
        self._given: Set[Slot] = set()  # had a gradient in this step
        self._pushed_in_pass: Dict[Slot, bool] = {}
        self._scaled = False
        for slot in self._slots:
            clear_grad(slot.parameter)

    def _raise_failure(self) -> None:
        failure = self._failure
        if failure is not None:
            self._drop_round()
            raise failure

    # ---- what the trainer changed here ----

    @contextlib.contextmanager
    def gathered(self, *what: Union[str, nn.Module, torch.Tensor]) -> Iterator[None]:
        with super().gathered(*what):
            if self._window is None:
                yield
                return
            values = _changed.Values({slot for one in what for slot in self._chosen(one)})
            values.note()
            yield
            written = [slot.name for slot in values.changed()]
        if written and not self._is_told_of_gathered:
            self._is_told_of_gathered = True
            warnings.warn(_changed.why_gathered(written), stacklevel=3)

    def _written_here(self) -> List[Slot]:
        """What has other values than were fetched."""
        return [slot for values in self._values for slot in values.changed()]

    def _judge_model(self) -> None:
        self._structure.judge()
        _changed.judge_dtypes(self._slots, self._dtypes)
        _changed.judge_thawed(self._frozen, [group.name for group in self._spec.groups])

    def _judge_changes(self) -> None:
        """Before a commit, which would go by what the servers have: nothing of the step is applied."""
        try:
            self._judge_model()
            self._judge_frozen()
            in_passes = [] if self._window is None else self._window.written()
            written = [slot.name for slot in self._written_here() + in_passes if slot in self._fixed]
            if written:
                raise Invalid(_changed.why_written(written, "Nothing of this step was applied"))
        except Invalid:
            self._withdraw()
            raise

    def _judge_frozen(self) -> None:
        """What takes no gradient here is not to be moved by the servers, which an amendment tells them; those of a job
        that leaves such tensors alone need not be told."""
        if self._spec.missing_gradients == "leave":
            return
        for found, why in ((_changed.frozen_here(self._trained), _changed.why_frozen),
                           (self._structure.gone, _changed.why_gone)):
            moved = [slot.name for slot in found if slot not in self._given and not self._is_refused(slot)]
            if moved:
                raise Invalid(why(moved))

    def _is_refused(self, slot: Slot) -> bool:
        """Whether it is frozen by an amendment, another worker's too: its gradient would be refused, be it 0."""
        if slot not in self._refused and self._own():
            try:
                self._begun()
                assert self._round is not None
                self._touched = self._round.info.round
                self._round.push(slot.name, torch.zeros(slot.parameter.shape), box=slot.box,
                                 micro=self._own()[min(self._passes, len(self._own()) - 1)])
            except Refused:
                self._refused.add(slot)
        return slot in self._refused or not self._own()

    def _judge_write(self, names: Container[str]) -> None:
        written = [slot.name for slot in self._written_here() if slot.name not in names]
        if written:
            raise Invalid(_changed.why_written(written, "Nothing was written to the servers"))
        self._end_dropped()

    @staticmethod
    def _judge_undone(written: Mapping[Slot, torch.Tensor]) -> None:
        """Of values that were written here, as they were, while the servers have a newer version now."""
        undone = [slot.name for slot, value in written.items() if not torch.equal(slot.parameter.detach(), value)]
        if undone:
            raise Invalid(_changed.why_written(undone, "A newer version has come meanwhile, and it is undone"))

    # ---- gradients ----

    @contextlib.contextmanager
    def no_sync(self) -> Iterator[None]:
        """Backward passes inside add up in .grad, as torch does it, and go with the next pass outside (or step()) as
        one: the sum counts once, as with DistributedDataParallel."""
        before, self._local = self._local, True
        try:
            yield
        finally:
            self._local = before

    def _took_gradient(self, slot: Slot) -> None:
        if not self._local:
            self._take(slot)
            if self._together.begins():  # the last ones go when the backward pass is over
                torch.autograd.Variable._execution_engine.queue_callback(self._send_together)
        else:
            judge_scaled(slot.name)
        if self._window is not None:
            self._window.on_accumulated(slot)

    def _take(self, slot: Slot) -> None:
        gradient = grad_of(slot.parameter)
        clear_grad(slot.parameter)
        if gradient is None or self._failure is not None:
            return
        self._judge(slot, gradient)
        try:
            self._begun(is_computed=True)
            self._pushed_in_pass[slot] = True
            self._given.add(slot)
            if slot not in self._refused:
                self._push(slot, gradient)
        except Refused:  # it or its group was frozen by an amendment
            self._refused.add(slot)
        except Stale as stale:
            self._failure = self._others_went_on(stale)
        except CairnError as failure:
            self._failure = failure

    def _judge(self, slot: Slot, gradient: torch.Tensor) -> None:
        if slot in self._pushed_in_pass:
            raise Invalid(f"a second gradient of {slot.name} since the last forward pass of the model. {_ADD_UP}, or "
                          "call m.micro_end() between two backward passes whose mean is wanted (micro_batches=…). "
                          + _NO_DDP)
        self._judge_pass()
        judge_scaled(slot.name)
        if gradient.layout != torch.strided:
            raise Unsupported(f"the gradient of {slot.name} is sparse; build the module with sparse=False")

    def _pushed(self) -> Optional[Tuple[int, int, int]]:
        """How much of the open round is at the servers; None: nothing."""
        if self._round is None or not (self._passes or self._pushed_in_pass):
            return None
        return self._round.info.round, self._passes, len(self._pushed_in_pass)

    def _own(self) -> range:
        """The numbers of this worker's backward passes."""
        if self._spec.global_batch and self._round is not None:
            return self._round.info.micro_batches
        return range(self._micro_batches)

    def _judge_pass(self) -> None:
        own, batch = self._own(), self._spec.global_batch
        if self._passes < len(own):
            return
        if batch:
            raise Invalid(f"this is backward pass {self._passes + 1} of the step, and {len(own)} of its {batch} "
                          "micro-batches are this worker's: one for each, for k in m.begin().micro_batches, then "
                          "m.step()")
        raise Invalid(f"this is backward pass {self._passes + 1} of the step, and micro_batches is "
                      f"{self._micro_batches}. Call m.step() before, if the step is over. {_ADD_UP}. For the mean over "
                      "micro-batches, each with its own mean loss, undivided: attach(…, micro_batches=N) for N "
                      f"backward passes a step, of which this is number {self._passes + 1}. A pass of another model "
                      "through this one (a GAN's generator step) is not of its step at all: "
                      "model.requires_grad_(False) before it, and True again behind it")

    def _push(self, slot: Slot, gradient: torch.Tensor) -> None:
        assert self._round is not None
        if slot.box is None and not self._counts:
            return  # the one that counts has the same gradient
        if not self._together.takes(gradient):
            self._push_alone(slot, gradient)
        elif self._together.add(slot, gradient):
            self._push_together()

    def _push_together(self) -> None:
        """Those that wait for others, as one; where one of them cannot go so, each by itself."""
        waiting = self._together.take()
        if not waiting or self._round is None:
            return
        began = time.monotonic()
        place, pieces = self._gradients.place_together(waiting)
        self._touched = self._round.info.round
        try:
            push = self._round.push_many(pieces, self._own()[self._passes], place)
        except (Refused, Unsupported):
            self._gradients.drop(place)
            for slot, gradient in waiting:
                try:
                    self._push_alone(slot, gradient)
                except Refused:
                    self._refused.add(slot)
            return
        except BaseException:
            self._gradients.drop(place)
            raise
        self._gradients.pushing(place, push)
        for slot, _ in waiting if self._timeline is not None else ():
            self._timeline.pushed(slot.name, began, push)

    def _send_together(self) -> None:
        """What is left of them; a failure is raised by the next call."""
        try:
            self._push_together()
        except Stale as stale:
            self._failure = self._others_went_on(stale)
        except CairnError as failure:
            self._failure = failure

    def _push_alone(self, slot: Slot, gradient: torch.Tensor) -> None:
        assert self._round is not None
        began = time.monotonic()
        place = self._gradients.place(slot, gradient)
        self._touched = self._round.info.round
        try:
            with _transfer.beside(place.tensor.device):  # behind the copy, or what autograd made
                push = self._round.push_watched(slot.name, place.tensor, micro=self._own()[self._passes], box=slot.box,
                                                dtype=_PUSHED[place.tensor.dtype])
        except BaseException:
            self._gradients.drop(place)
            raise
        self._gradients.pushing(place, push)
        if self._timeline is not None:
            self._timeline.pushed(slot.name, began, push)

    def _judge_gradients(self) -> None:
        """After a step: nothing is shared if no shard is on this host, and the copies were for nothing."""
        self._gradients.reclaim()
        if self._judge_sharing and self._gradients.nbytes > 0:
            stats = self._job.stats()
            if stats.pushed_bytes > 0 and stats.shared_pushed_bytes == 0:
                self._gradients.close()
            self._judge_sharing = stats.pushed_bytes == 0

    @goes_on
    def micro_end(self) -> None:
        """Ends a backward pass of several in a step. The next forward pass of the model does it by itself. With
        global_batch it also ends a micro-batch that has no gradient at all, and needs no backward pass."""
        if self._spec.global_batch:
            self.begin()
        self._end_pass(may_be_empty=self._spec.global_batch > 0)

    def _end_pass(self, may_be_empty: bool = False) -> None:
        self._raise_failure()
        for slot in self._trained:
            if grad_of(slot.parameter) is not None:  # of no_sync, or set by the trainer
                if slot in self._pushed_in_pass:
                    raise Invalid(f"a second gradient of {slot.name}: .grad was set behind a backward pass, by hand or "
                                  "by a pass in no_sync, whose gradient is at the servers already. m.resume() throws "
                                  f"the step away. {KEEP_IN_GRAD} {_NO_DDP}")
                self._take(slot)
        self._send_together()
        self._raise_failure()
        if not self._pushed_in_pass and not may_be_empty:
            return
        self._judge_pass()
        self._call_round(lambda round_: round_.micro_end(self._own()[self._passes]))
        self._passes += 1
        self._pushed_in_pass = {}
        self._together.end()

    def _call_round(self, call: Callable[[RoundHandle], Any]) -> Any:
        """What is no Timeout ends the round for this worker."""
        assert self._round is not None
        self._touched = self._round.info.round
        try:
            return call(self._round)
        except Timeout:
            raise
        except Stale as stale:
            self._drop_round()
            raise self._others_went_on(stale) from stale
        except CairnError:
            self._drop_round()
            raise

    @goes_on
    def step(self, clip_norm: Optional[float] = None, weight: Optional[int] = None,
             timeout: Optional[float] = None, client_state: Optional[bytes] = None) -> Result:
        """Commits this worker's part and waits until the servers have applied the round; then the model has the new
        parameters. `weight`: of this worker's part against the others', 1 a backward pass if None (none if it does not
        count), 0 nothing; give numbers of tokens only with losses that are sums over tokens. `clip_norm` is the job's,
        given to attach: another is refused. `client_state`: bytes of the trainer's own (where its data loader stands, a
        random state) that belong to the version which the step makes and are restored with it, see client_state();
        those of rank 0 of the round are taken, others' are not, and client_state_max of attach is their limit. Timeout:
        call it again to go on waiting. EpochChanged: nothing was applied, do the step again."""
        if clip_norm is not None and clip_norm != self.clip_norm:
            raise Invalid(f"clip_norm {clip_norm} here, {self.clip_norm} in the job: it is state of the servers; give "
                          "it to attach")
        weight_to_c(weight)
        self._raise_failure()
        self._optimizers.judge()
        self._judge_changes()
        self._end_pass()
        scale = self.begin().loss_scale
        if self._spec.global_batch and self._passes < len(self._own()):
            raise Invalid(f"{self._passes} of the {len(self._own())} micro-batches of this worker had a backward pass, "
                          "and every step has all of them: for k in m.begin().micro_batches; m.micro_end() ends one "
                          "without gradients")
        if scale != 1.0 and self._passes > 0 and not self._scaled:
            raise Invalid(f"the job has a loss scale of {scale}, and the loss was not multiplied by it: "
                          "m.scale(loss).backward()")
        counted = max(self._passes, 1) if weight is None else weight
        chosen = counted if self._counts else 0
        if client_state is not None and self._spec.client_state_max == 0:
            raise Invalid("the job keeps no client state: give attach(…, client_state_max=…), bytes at most")
        given = client_state if self._rank == 0 else None
        self._drive(self.begin().step)
        self._gives_buffers = self._is_to_give_buffers()
        rates, passes, given_gradients = dict(self._job._rates), self._passes, self._given
        result: Result = self._call_round(
            lambda round_: round_.commit(chosen, self.timeout if timeout is None else timeout, given))
        self._round = None
        self._forget_gradients()
        self._judge_gradients()
        if result.applied:
            self._drive(result.step)
            self._load_after(self._with_buffers(result.version, self._gives_buffers), is_as_left=True)
        elif self._window is not None:
            self._window.release_all()
        self._stillness.saw(result, self._spec.groups, rates)
        self._untouched.saw(result, passes, given_gradients)
        return result

    def _is_to_give_buffers(self) -> bool:
        """In the round that is open."""
        if self._spec.global_batch:
            return self._spec.global_batch - 1 in self._own()
        return self._rank == 0

    def _drive(self, step: int) -> None:
        """The torch scheduler stands at that step, and the next commit has its learning rates."""
        if self._driver is not None:
            for name, lr in self._driver.at(step).items():
                self._job.group_lr(name, lr)

    def _load_after(self, version: Version, is_as_left: bool = False) -> None:
        try:
            self._load(version, is_as_left)
        except VersionGone:
            self._load_newest(version)
