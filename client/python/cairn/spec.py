"""What a job is, in Python's words: tensors, groups of hyper-parameters, and how they become C structs."""

from __future__ import annotations

import ctypes
from dataclasses import dataclass, field
from typing import Any, Dict, List, Mapping, NamedTuple, Optional, Sequence, Tuple, Union

from . import _c
from .errors import Invalid

DTYPES = {"f32": _c.F32, "bf16": _c.BF16, "f16": _c.F16, "f64": _c.F64, "u8": _c.U8}
KINDS = {"trained": _c.TRAINED, "frozen": _c.FROZEN, "buffer": _c.BUFFER, "blob": _c.BLOB}
PLACES = {"rows": _c.ROWS, "whole": _c.WHOLE}
INITS = {"zeros": _c.INIT_ZEROS, "ones": _c.INIT_ONES, "constant": _c.INIT_CONSTANT, "uniform": _c.INIT_UNIFORM,
         "normal": _c.INIT_NORMAL}
LOSS_SCALES = {"default": _c.LOSS_SCALE_DEFAULT, "fixed": _c.LOSS_SCALE_FIXED, "dynamic": _c.LOSS_SCALE_DYNAMIC}
NONFINITE = {"skip": _c.NONFINITE_SKIP, "fail": _c.NONFINITE_FAIL}
WORKER_LOSSES = {"redo": _c.WORKER_LOSS_REDO, "wait": _c.WORKER_LOSS_WAIT, "fail": _c.WORKER_LOSS_FAIL}
SHARD_LOSSES = {"wait": _c.SHARD_LOSS_WAIT, "restore-latest": _c.SHARD_LOSS_RESTORE_LATEST}
STAGINGS = {"state": _c.SNAPSHOT_STAGING_STATE, "small": _c.SNAPSHOT_STAGING_SMALL}
DURABILITIES = {"default": _c.DURABILITY_DEFAULT, "process": _c.DURABILITY_PROCESS, "peer": _c.DURABILITY_PEER,
                "log": _c.DURABILITY_LOG, "log+peer": _c.DURABILITY_LOG_PEER}
REDUCE_GROUPS = {"none": _c.GROUPS_NONE, "host": _c.GROUPS_HOST}
MISSING = {"zero": _c.MISSING_ZERO, "leave": _c.MISSING_LEAVE}
EMA_SCHEDULES = {"constant": _c.EMA_CONSTANT, "warmup": _c.EMA_WARMUP}
TIERS = {"together": _c.TIERS_TOGETHER, "moments on the host": _c.TIERS_MOMENTS_ON_HOST,
         "param on the host": _c.TIERS_PARAM_ON_HOST}


class Version(NamedTuple):
    """A state of the parameters. `generation` starts anew on a restore; `step` counts applied updates."""

    generation: int
    step: int


class Box(NamedTuple):
    """A part of a tensor, in elements of each dimension."""

    start: Tuple[int, ...]
    extent: Tuple[int, ...]

    @classmethod
    def whole(cls, shape: Sequence[int]) -> "Box":
        return cls((0,) * len(shape), tuple(shape))


class Tile(NamedTuple):
    """What a worker holds of a tensor."""

    tensor: str
    box: Box


class Part(NamedTuple):
    """Where a worker's parameter lies: in a tensor of `shape`, from `start` on, in elements of each dimension."""

    shape: Tuple[int, ...]
    start: Tuple[int, ...]


class Init(NamedTuple):
    """What a tensor begins as, made by the shards: "zeros", "ones", "constant" (a), "uniform" (from a to b), "normal"
    (mean a, standard deviation b)."""

    kind: str
    a: float = 0.0
    b: float = 0.0
    seed: int = 0


@dataclass(frozen=True)
class Tensor:
    """A tensor of a job. `unit`: tensors of one unit are fetched together. `group`: whose hyper-parameters; None =
    "default". `wire`: dtype of what is fetched, "f32" or "bf16". `kind`: "trained", "frozen", "buffer", or "blob":
    opaque bytes, of wire "u8" and shape (bytes,), put and fetched with dtype "u8", never taken for numbers.
    `alias_of`: this is another name of that tensor (tied), or of a box of it (a part of a fused tensor: what is put
    and pushed of parts goes when all of them are there). `place`: "rows", cut over the shards, or "whole", on one of
    them. `steps_missed`: of JobSpec.first_step so many passed this trained tensor by, so that its own count of updates
    begins at first_step - steps_missed; who opens the job later leaves it out."""

    name: str
    shape: Tuple[int, ...]
    unit: Optional[str] = None
    group: Optional[str] = None
    wire: str = "f32"
    kind: str = "trained"
    alias_of: Optional[str] = None
    alias_box: Optional[Box] = None
    place: str = "rows"
    init: Optional[Init] = None
    steps_missed: int = 0


@dataclass(frozen=True)
class Schedule:
    """How a learning rate goes; made by constant, linear, cosine, wsd and table of this package."""

    kind: int = _c.SCHEDULE_CONSTANT
    warmup_steps: int = 0
    total_steps: int = 0
    decay_steps: int = 0
    lr_min: float = 0.0
    points: Tuple[Tuple[int, float], ...] = ()


@dataclass(frozen=True)
class Group:
    """Hyper-parameters of the tensors that name it. `optimizer`: "adamw", "adam" or "sgd"."""

    name: str = "default"
    optimizer: str = "adamw"
    lr: float = 1e-3
    beta1: float = 0.9
    beta2: float = 0.999
    eps: float = 1e-8
    weight_decay: float = 0.0
    momentum: float = 0.0
    nesterov: bool = False
    schedule: Schedule = Schedule()
    ema: float = 0.0  # decay of the average of the parameters that the shards keep; 0: none
    ema_schedule: str = "constant"  # or "warmup": min(ema, (1 + k) / (10 + k)) in the round of step k


START_WAIT_S = 30.0


@dataclass(frozen=True)
class JobSpec:
    """What a job is made of.

    The next lines are made by tests/tree/spec_fields.py; 0 is what is not given.
    `workers_min`: The fewest workers with which a round opens; 0 = 1
    `clip_norm`: Bound of the global gradient norm; 0 = none
    `loss_scale`: At the start of the job; 1 = none
    `on_nonfinite`: The effect of a gradient that is not finite on its round: "skip" (the default), or "fail"
    `chunk_leaves`: Leaves of 4096 elements in a message; 0 = 64
    `window`: Chunks in flight to each shard; 0 = 8. More may be in flight: up to 64 chunks of at most 16 KiB, and as
        many chunks as keep a card busy if the shard reads their memory in place
    `loss_scale_policy`: "fixed", "dynamic", or "default": dynamic if loss_scale is above 1
    `stage`: 0 to 3, see cairn.torch
    `micro_batches`: The most micro-batches that each worker has in a round: a push into a later micro-batch is
        Invalid. 0 = 1, or any number in stages 2 and 3, which add nothing up. With global_batch leave this field 0 or
        1
    `client_state_max`: The most bytes of client state that cairn_commit may give; 0 = none; at most 65536
    `init_nonfinite_ok`: init_from may have weights that are NaN or infinite
    `reduce_groups`: "none", or "host"; there are no groups while the workers hold tiles (cairn_tiles). No amendment
        changes it.
    `skips_max`: The most rounds that may be skipped in a row with the loss scale at its minimum (or fixed). After that
        no further round opens: cairn_round_begin says Halted, until the job is amended, written or restored. 0 = 100
    `snapshot_every`: A periodic snapshot is taken of each version whose step is a multiple of snapshot_every, so every
        run saves the same steps. 0 = none, or by time (snapshot_every_s). The newest snapshot_keep periodic snapshots
        are retained (0 = all). A snapshot that somebody asked for is never removed. If a periodic snapshot fails, the
        coordinator's log and `cairn job show` say so, and training continues; the next periodic snapshot is tried at
        its own step. No periodic snapshot is taken while results are not finite (cairn_result.nonfinite).
    `snapshot_keep`: Only with snapshot_every or snapshot_every_s; 0 = all are retained
    `on_shard_loss`: The coordinator's reaction when a shard has lost its part: "wait" (the default), or
        "restore-latest"
    `shard_loss_wait`: With "restore-latest": seconds; 0 = 300
    `workers_max`: The most workers at a time: one more waits in cairn_job_open for a place, until Timeout. 0 = as many
        as the cluster's round.workers_max. If workers_min equals workers_max (always n workers), the spec also matches
        a job whose bounds allow n, for example in another launch after an amendment.
    `offload_fraction`: The fraction of each shard's part of the job, 0 to 1, that lies in host memory; the rest lies
        on a GPU. The part in host memory consists of whole chunks, at least this fraction. The CPU updates these
        chunks while the GPU works on the rest, with the same bits at any fraction. At 1 nothing of the job is on the
        GPU, and the job continues if the GPU fails. If all state lies in host memory anyway, the fraction has no
        effect, and the log says so. A restored job has the same fraction.
    `tiers`: Where the planes of an element lie: "together" (the default); the others are refused
    `global_batch`: Elastic workers with the same bits: a step consists of this many micro-batches, numbered from 0,
        whatever the number of workers (1 to 65536; 0 = none, each worker has its micro_batches). struct cairn_round
        says which micro-batches are this worker's. Each micro-batch is pushed separately, with its weight. The result
        of N steps then does not depend on how many workers there were, nor on when they joined and left, if the
        gradients of a micro-batch depend on nothing but the round's version, the micro-batch and its seed
        (cairn_micro_seed). Learning rates and schedules depend on steps, so another number of workers does not change
        them. If there are more workers than micro-batches, the surplus workers are told so and stay idle; they take
        part when other workers leave. Needs stage 2 or 3, micro_batches 0 or 1, no reduce_groups, no tiles (else
        Invalid). An amendment changes global_batch by its name (cairn_amend.settings), and the seed likewise.
    `seed`: For cairn_micro_seed; below 2^53
    `on_worker_loss`: The coordinator's reaction when a worker was lost: "redo" (the default), "wait" or "fail"
    `worker_loss_wait`: With "wait": seconds; 0 = 300
    `snapshot_keep_every`: Steps; 0 = no such rule. Rules that retain periodic snapshots beside the newest
        snapshot_keep; any one rule is enough to retain a snapshot, and without a rule all are retained. keep_every:
        the first snapshot in every interval of this many steps is retained for good. max_bytes bounds all snapshots of
        the job together; above this bound the oldest snapshots are removed, except those that keep_every or a tag
        retains. Snapshots that somebody asked for or that have a tag are always retained, and so is the newest
        verified one; a snapshot is removed only after a newer one was verified. Give these rules only with
        snapshot_every or snapshot_every_s
    `snapshot_max_bytes`: 0 = no bound
    `snapshot_every_s`: Used instead of snapshot_every: seconds from the start of one periodic snapshot to the next,
        which is taken at the first step after these seconds
    `snapshot_keep_within_s`: Seconds: retains all that are younger; 0 = no such rule
    `snapshot_durable_within_s`: Every snapshot is to be on disk so many seconds after its cut; 0 = no deadline
    `snapshot_scrub_every_s`: Every snapshot is read again and checked; 0 = by command only
    `snapshot_staging`: Room for what updates overwrite while a snapshot is written: "state" (the default), or "small"
    `snapshot_fallback`: A restore that finds a snapshot damaged takes the newest good one before it
    `first_step`: For a run that began elsewhere and continues here: the step of the version that the job begins with.
        Schedules and the optimizer's corrections continue from this step. The moments are written (cairn_write_begin)
        before the first round. Workers that open the job afterwards may leave this field out.
    `missing_gradients`: The treatment of a trained tensor to which nobody pushed a gradient in a round: "zero" (the
        default), or "leave", for jobs of at most 24,576 tensors
    `init_extra_ok`: init_from may have more weights than the job has tensors
    `buffers_every`: If not 0, a worker of the job writes its buffers (cairn_write_begin) after each applied step that
        is a multiple of this or of snapshot_every, before the next round: the periodic snapshot of that step then
        saves the version that the write makes; without one, the next version. 0: none
    `audit_every`: Every so many steps all state is compared with its checksums (deploy/README.md)
    `durability`: The losses that cost no step; refused if the cluster lacks what that takes
    `keep_versions`: `cairn job rollback` goes back to any of so many last versions; shards keep them in host memory,
        12 bytes a parameter each with AdamW. At most 64; 0 = none
    And these, by hand. `rank`: this worker's, unique in the job. `init_from`: a safetensors file, a Hugging Face
    folder, or the folder of a snapshot, of which the optimizer's state and the step are left out, where the shards
    are, that they begin with. `world`: how many workers come together; the first round after all were gone waits for
    so many, `start_wait` seconds at most; 0: for nobody beyond workers_min."""

    tensors: Sequence[Tensor]
    groups: Sequence[Group] = field(default_factory=lambda: (Group(),))
    rank: int = 0
    # The next lines are made by tests/tree/spec_fields.py
    workers_min: int = 1
    clip_norm: Optional[float] = 0.0
    loss_scale: float = 1.0
    on_nonfinite: str = "skip"
    chunk_leaves: int = 0
    window: int = 0
    loss_scale_policy: str = "default"
    stage: int = 2
    micro_batches: int = 1
    client_state_max: int = 0
    init_nonfinite_ok: bool = False
    reduce_groups: str = "none"
    skips_max: int = 0
    snapshot_every: int = 0
    snapshot_keep: int = 0
    on_shard_loss: str = "wait"
    shard_loss_wait: int = 0
    workers_max: int = 0
    offload_fraction: float = 0.0
    tiers: str = "together"
    global_batch: int = 0
    seed: int = 0
    on_worker_loss: str = "redo"
    worker_loss_wait: int = 0
    snapshot_keep_every: int = 0
    snapshot_max_bytes: int = 0
    snapshot_every_s: int = 0
    snapshot_keep_within_s: int = 0
    snapshot_durable_within_s: int = 0
    snapshot_scrub_every_s: int = 0
    snapshot_staging: str = "state"
    snapshot_fallback: bool = False
    first_step: int = 0
    missing_gradients: str = "zero"
    init_extra_ok: bool = False
    buffers_every: int = 0
    audit_every: int = 0
    durability: str = "default"
    keep_versions: int = 0
    # From here on by hand
    init_from: Optional[str] = None
    init_prefix: Optional[str] = None
    world: int = 0
    start_wait: float = START_WAIT_S


class Field(NamedTuple):
    """A scalar of JobSpec."""

    name: str
    c_name: str  # in cairn.h
    kind: str  # "count", "real", "flag" or "choice"
    words: str  # of a choice: which
    most: int  # that C has room for
    zero: int  # what 0 stands for
    goes_with: str  # the field that it is amended with
    is_policy: bool  # a rule by which the coordinator acts


FIELDS = (
    # The next lines are made by tests/tree/spec_fields.py
    Field("clip_norm", "clip_norm", "real", "", 2147483647, 0, "", False),
    Field("loss_scale", "loss_scale", "real", "", 2147483647, 0, "", False),
    Field("on_nonfinite", "on_nonfinite", "choice", "NONFINITE", 2147483647, 0, "", False),
    Field("loss_scale_policy", "loss_scale_policy", "choice", "LOSS_SCALE", 2147483647, 0, "", False),
    Field("stage", "stage", "count", "", 2147483647, 0, "", False),
    Field("micro_batches", "micro_batches", "count", "", 2147483647, 1, "", False),
    Field("workers_min", "workers_min", "count", "", 2147483647, 1, "", False),
    Field("chunk_leaves", "chunk_leaves", "count", "", 2147483647, 64, "", False),
    Field("window", "window", "count", "", 2147483647, 8, "", False),
    Field("client_state_max", "client_state_max", "count", "", 2147483647, 0, "", False),
    Field("init_nonfinite_ok", "init_nonfinite_ok", "flag", "", 2147483647, 0, "", False),
    Field("reduce_groups", "reduce_groups", "choice", "GROUPS", 2147483647, 0, "", False),
    Field("skips_max", "skips_max", "count", "", 2147483647, 100, "", False),
    Field("snapshot_every", "snapshot_every", "count", "", 281474976710656, 0, "", True),
    Field("snapshot_keep", "snapshot_keep", "count", "", 2147483647, 0, "snapshot_every", True),
    Field("on_shard_loss", "on_shard_loss", "choice", "SHARD_LOSS", 2147483647, 0, "", True),
    Field("shard_loss_wait", "shard_loss_wait_s", "count", "", 2147483647, 300, "on_shard_loss", True),
    Field("workers_max", "workers_max", "count", "", 2147483647, 0, "", False),
    Field("offload_fraction", "offload_fraction", "real", "", 2147483647, 0, "", False),
    Field("tiers", "tiers", "choice", "TIERS", 2147483647, 0, "", False),
    Field("global_batch", "global_batch", "count", "", 2147483647, 0, "", False),
    Field("seed", "seed", "count", "", 9007199254740991, 0, "", False),
    Field("on_worker_loss", "on_worker_loss", "choice", "WORKER_LOSS", 2147483647, 0, "", True),
    Field("worker_loss_wait", "worker_loss_wait_s", "count", "", 2147483647, 0, "on_worker_loss", True),
    Field("snapshot_every_s", "snapshot_every_s", "count", "", 2147483647, 0, "", True),
    Field("snapshot_keep_every", "snapshot_keep_every", "count", "", 281474976710656, 0, "", True),
    Field("snapshot_keep_within_s", "snapshot_keep_within_s", "count", "", 2147483647, 0, "", True),
    Field("snapshot_max_bytes", "snapshot_max_bytes", "count", "", 1152921504606846976, 0, "", True),
    Field("snapshot_staging", "snapshot_staging", "choice", "STAGING", 2147483647, 0, "", True),
    Field("snapshot_durable_within_s", "snapshot_durable_within_s", "count", "", 2147483647, 0, "", True),
    Field("snapshot_fallback", "snapshot_fallback", "flag", "", 2147483647, 0, "", True),
    Field("snapshot_scrub_every_s", "snapshot_scrub_every_s", "count", "", 2147483647, 0, "", True),
    Field("first_step", "first_step", "count", "", 281474976710656, 0, "", False),
    Field("missing_gradients", "missing_gradients", "choice", "MISSING", 2147483647, 0, "", False),
    Field("init_extra_ok", "init_extra_ok", "flag", "", 2147483647, 0, "", False),
    Field("buffers_every", "buffers_every", "count", "", 281474976710656, 0, "", False),
    Field("audit_every", "audit_every", "count", "", 281474976710656, 0, "", True),
    Field("durability", "durability", "choice", "DURABILITY", 2147483647, 0, "", True),
    Field("keep_versions", "keep_versions", "count", "", 2147483647, 0, "", True),
    # From here on by hand
)
_WORDS = {"NONFINITE": NONFINITE, "LOSS_SCALE": LOSS_SCALES, "GROUPS": REDUCE_GROUPS, "SHARD_LOSS": SHARD_LOSSES,
          "WORKER_LOSS": WORKER_LOSSES, "STAGING": STAGINGS, "TIERS": TIERS, "MISSING": MISSING,
          "DURABILITY": DURABILITIES}
_BY_NAME = {one.name: one for one in FIELDS}
# What an amendment takes together
PAIRS = tuple((one.goes_with, one.name) for one in FIELDS if one.goes_with)
POLICIES = tuple(one.name for one in FIELDS if one.is_policy)
SNAPSHOT_RULES = tuple(name for name in POLICIES if not any(name in pair for pair in PAIRS))


def number(table: Dict[str, int], what: str, name: str) -> int:
    """The number of cairn.h for a word, or Invalid with the words that are allowed."""
    if name not in table:
        raise Invalid(f"{what} is {name!r}; allowed are {', '.join(table)}")
    return table[name]


def at_least(least: int, what: str, value: Any, most: int = 2 ** 31 - 1) -> int:
    """C would wrap what is out of range."""
    if type(value) is not int or not least <= value <= most:
        raise Invalid(f"{what} is {value!r}; it must be a whole number of at least {least}"
                      + (f" and at most {most}" if type(value) is int and value > most else ""))
    return value


def workers_of(workers: Any) -> Tuple[int, int]:
    """(min, max) of what may be a number."""
    bounds = workers if isinstance(workers, (tuple, list)) and len(workers) == 2 else (workers, workers)
    least = at_least(1, "the least number of workers", bounds[0])
    return least, at_least(least, "the greatest number of workers", bounds[1])


def _real(what: str, value: Any, hint: str = "") -> float:
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        raise Invalid(f"{what} is {value!r}; it must be a number{hint}")
    return value


def _clip_norm(value: Optional[float]) -> float:
    return 0.0 if value is None else _real("clip_norm", value, ", and 0 is none")


def _value(one: Field, value: Any) -> Any:
    """What C takes."""
    if one.kind == "choice":
        return number(_WORDS[one.words], one.name, value)
    if one.kind == "flag":
        return bool(value)
    if one.name == "stage":
        return _c.stage(value)
    if one.name == "clip_norm":
        return _clip_norm(value)
    return _real(one.name, value) if one.kind == "real" else at_least(0, one.name, value, one.most)


def text(string: Optional[str]) -> Optional[bytes]:
    return None if string is None else string.encode()


def box_to_c(box: Box) -> _c.Box:
    if len(box.start) != len(box.extent) or len(box.start) > _c.RANK_MAX:
        raise Invalid(f"a box of {len(box.start)} starts and {len(box.extent)} extents; as many as dimensions are "
                      f"needed, and at most {_c.RANK_MAX}")
    made = _c.Box(rank=len(box.start))
    for d, (start, extent) in enumerate(zip(box.start, box.extent)):
        made.start[d], made.extent[d] = start, extent
    return made


def word(table: Dict[str, int], value: int) -> str:
    """The other way round: what a number of cairn.h is called here."""
    return next((name for name, number_ in table.items() if number_ == value), str(value))


def box_from_c(box: _c.Box) -> Box:
    return Box(tuple(box.start[:box.rank]), tuple(box.extent[:box.rank]))


def tensor_from_c(tensor: _c.Tensor) -> Tensor:
    def string(value: Optional[bytes]) -> Optional[str]:
        return value.decode() if value else None

    init = Init(word(INITS, tensor.init.kind), tensor.init.a, tensor.init.b, tensor.init.seed)
    return Tensor(tensor.name.decode(), tuple(tensor.shape[:tensor.rank]), string(tensor.unit), string(tensor.group),
                  word(DTYPES, tensor.wire), word(KINDS, tensor.kind), string(tensor.alias_of),
                  box_from_c(tensor.alias_box.contents) if tensor.alias_box else None, word(PLACES, tensor.place),
                  init if tensor.init.kind != _c.INIT_NONE else None)


@dataclass(frozen=True)
class Amendment:
    """What changes about a job while it trains; see Job.amend."""

    groups: Sequence[Group] = ()
    freeze: Sequence[str] = ()
    unfreeze: Sequence[str] = ()
    freeze_tensors: Sequence[str] = ()
    unfreeze_tensors: Union[Sequence[str], Mapping[str, Optional[str]]] = ()
    clip_norm: Optional[float] = None
    add: Sequence[Tensor] = ()
    ties: Mapping[str, str] = field(default_factory=dict)
    snapshots: Optional[Tuple[int, int]] = None  # snapshot_every, snapshot_keep
    shard_loss: Optional[Tuple[str, int]] = None  # on_shard_loss, shard_loss_wait
    worker_loss: Optional[Tuple[str, int]] = None  # on_worker_loss, worker_loss_wait
    workers: Union[None, int, Tuple[int, int]] = None
    snapshot_rules: Optional[Mapping[str, Any]] = None  # SNAPSHOT_RULES; what is left out is at its default
    settings: Mapping[str, Any] = field(default_factory=dict)


def _tensor(tensor: Tensor, alive: List[Any]) -> _c.Tensor:
    made = _c.Tensor(name=text(tensor.name), unit=text(tensor.unit), group=text(tensor.group),
                     alias_of=text(tensor.alias_of), wire=number(DTYPES, f"wire of {tensor.name}", tensor.wire),
                     rank=len(tensor.shape), kind=number(KINDS, f"kind of {tensor.name}", tensor.kind),
                     place=number(PLACES, f"place of {tensor.name}", tensor.place),
                     steps_missed=at_least(0, f"steps_missed of {tensor.name}", tensor.steps_missed, 2 ** 48))
    if len(tensor.shape) > _c.RANK_MAX:
        raise Invalid(f"tensor {tensor.name} has {len(tensor.shape)} dimensions; at most {_c.RANK_MAX} are allowed")
    for d, extent in enumerate(tensor.shape):
        made.shape[d] = extent
    if tensor.alias_box is not None:
        box = box_to_c(tensor.alias_box)
        alive.append(box)
        made.alias_box = ctypes.pointer(box)
    if tensor.init is not None:
        made.init = _c.Init(kind=number(INITS, f"init of {tensor.name}", tensor.init.kind), a=tensor.init.a,
                            b=tensor.init.b, seed=tensor.init.seed)
    return made


def _group(group: Group, alive: List[Any]) -> _c.Group:
    schedule = group.schedule
    points = (_c.SchedulePoint * len(schedule.points))(*[_c.SchedulePoint(*point) for point in schedule.points])
    alive.append(points)
    return _c.Group(name=text(group.name), optimizer=text(group.optimizer), lr=group.lr, beta1=group.beta1,
                    beta2=group.beta2, eps=group.eps, weight_decay=group.weight_decay, momentum=group.momentum,
                    nesterov=group.nesterov, schedule=schedule.kind, warmup_steps=schedule.warmup_steps,
                    total_steps=schedule.total_steps, decay_steps=schedule.decay_steps, lr_min=schedule.lr_min,
                    ema=group.ema,
                    ema_schedule=number(EMA_SCHEDULES, f"ema_schedule of {group.name}", group.ema_schedule),
                    points=ctypes.cast(points, ctypes.POINTER(_c.SchedulePoint)) if schedule.points else None,
                    point_count=len(schedule.points))


def to_c(spec: JobSpec) -> Tuple[_c.JobSpec, List[Any]]:
    """The C struct and what it points to, which must live as long as it is used."""
    if _real("loss_scale", spec.loss_scale) == 0:  # of C: not given
        raise Invalid("loss_scale is 0, and 1 is none; give a number above 0")
    if spec.init_prefix is not None and spec.init_from is None:
        raise Invalid(f"init_prefix {spec.init_prefix!r} without init_from has no effect; give both or none")
    alive: List[Any] = []
    tensors = (_c.Tensor * len(spec.tensors))(*[_tensor(t, alive) for t in spec.tensors])
    groups = (_c.Group * len(spec.groups))(*[_group(g, alive) for g in spec.groups])
    alive += [tensors, groups]
    made = _c.JobSpec(tensors=ctypes.cast(tensors, ctypes.POINTER(_c.Tensor)), tensor_count=len(spec.tensors),
                      groups=ctypes.cast(groups, ctypes.POINTER(_c.Group)), group_count=len(spec.groups),
                      rank=at_least(0, "rank", spec.rank), init_from=text(spec.init_from),
                      init_prefix=text(spec.init_prefix),
                      world=at_least(0, "world", spec.world) if _real("start_wait", spec.start_wait) > 0 else 0,
                      start_wait_ms=max(1, int(spec.start_wait * 1000)),
                      **{one.c_name: _value(one, getattr(spec, one.name)) for one in FIELDS})
    return made, alive


def _strings(values: Sequence[Optional[str]], alive: List[Any]) -> Any:
    made = (ctypes.c_char_p * len(values))(*[text(value) for value in values])
    alive.append(made)
    return ctypes.cast(made, ctypes.POINTER(ctypes.c_char_p))


def setting(value: Any) -> str:
    """As cairn.h has it: numbers, words, "yes" and "no"."""
    return value if isinstance(value, str) else ("no", "yes")[value] if isinstance(value, bool) else repr(value)


def settings_of(fields: Mapping[str, Any]) -> Dict[str, Any]:
    """Fields of JobSpec as settings of cairn.h, where 0 is no word for the default."""
    made: Dict[str, Any] = {}
    for name, value in fields.items():
        one = _BY_NAME[name]
        taken = _value(one, value)  # refused here, rather than by the servers
        made[one.c_name] = value if one.kind == "choice" else taken or one.zero if one.kind == "count" else taken
    return made


def _rules(given: Mapping[str, Any]) -> Dict[str, Any]:
    """All of them: what is left out is at its default."""
    unknown = sorted(set(given) - set(SNAPSHOT_RULES))
    if unknown:
        raise Invalid(f"no rule of snapshots: {', '.join(unknown)}; there are {', '.join(SNAPSHOT_RULES)}")
    return {name: given.get(name, getattr(JobSpec, name)) for name in SNAPSHOT_RULES}


def amend_to_c(amendment: Amendment, revision: int) -> Tuple[_c.Amend, List[Any]]:
    """The same for an amendment."""
    alive: List[Any] = []
    a = amendment
    groups = (_c.Group * len(a.groups))(*[_group(group, alive) for group in a.groups])
    added = (_c.Tensor * len(a.add))(*[_tensor(tensor, alive) for tensor in a.add])
    ties = (_c.Tie * len(a.ties))(*[_c.Tie(text(name), text(target)) for name, target in a.ties.items()])
    thawed = a.unfreeze_tensors if isinstance(a.unfreeze_tensors, Mapping) else dict.fromkeys(a.unfreeze_tensors)
    policy = dict(_rules(a.snapshot_rules) if a.snapshot_rules is not None else {})
    pairs = {"snapshot_every": a.snapshots, "on_shard_loss": a.shard_loss, "on_worker_loss": a.worker_loss}
    for pair in PAIRS:
        values = pairs.get(pair[0])
        if values is None:
            continue
        first, second = values or (0, 0)  # neither more nor fewer
        policy.update({pair[0]: first, pair[1]: second})
    words = {**settings_of(policy), **a.settings}
    settings = (_c.Setting * len(words))(*[_c.Setting(text(key), text(setting(value))) for key, value in words.items()])
    alive += [groups, added, ties, settings]
    least, most = (0, 0) if a.workers is None else workers_of(a.workers)
    made = _c.Amend(revision=revision, groups=ctypes.cast(groups, ctypes.POINTER(_c.Group)), group_count=len(groups),
                    clip_norm=a.clip_norm or 0.0, set_clip_norm=a.clip_norm is not None,
                    freeze=_strings(a.freeze, alive), freeze_count=len(a.freeze),
                    unfreeze=_strings(a.unfreeze, alive), unfreeze_count=len(a.unfreeze),
                    freeze_tensors=_strings(a.freeze_tensors, alive), freeze_tensor_count=len(a.freeze_tensors),
                    unfreeze_tensors=_strings(list(thawed), alive), unfreeze_tensor_count=len(thawed),
                    unfreeze_tensor_groups=_strings(list(thawed.values()), alive),
                    add=ctypes.cast(added, ctypes.POINTER(_c.Tensor)), add_count=len(added),
                    ties=ctypes.cast(ties, ctypes.POINTER(_c.Tie)), tie_count=len(ties),
                    workers_min=least, workers_max=most,
                    settings=ctypes.cast(settings, ctypes.POINTER(_c.Setting)), setting_count=len(settings))
    return made, alive
