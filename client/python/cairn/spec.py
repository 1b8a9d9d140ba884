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
SNAPSHOT_RULES = ("snapshot_every_s", "snapshot_keep_every", "snapshot_keep_within_s", "snapshot_max_bytes",
                  "snapshot_staging", "snapshot_durable_within_s", "snapshot_fallback", "snapshot_scrub_every_s")
# What an amendment takes together
PAIRS = (("snapshot_every", "snapshot_keep"), ("on_shard_loss", "shard_loss_wait"),
         ("on_worker_loss", "worker_loss_wait"))
REDUCE_GROUPS = {"none": _c.GROUPS_NONE, "host": _c.GROUPS_HOST}
MISSING = {"zero": _c.MISSING_ZERO, "leave": _c.MISSING_LEAVE}
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


START_WAIT_S = 30.0


@dataclass(frozen=True)
class JobSpec:
    """What a job is made of. `rank`: this worker's, unique in the job. `workers_min`: a round opens with at least so
    many. `clip_norm`: of the global gradient norm, 0 or None = none. `on_nonfinite`: "skip" or "fail".
    `loss_scale_policy`: "fixed", "dynamic", or "default": dynamic if loss_scale is above 1. `micro_batches`: of each
    worker in a round. `init_from`: a safetensors file, a Hugging Face folder, or the folder of a snapshot, of which
    the optimizer's state and the step are left out, where the shards are, that they begin with. `client_state_max`:
    bytes that a commit may give of the trainer's own. `reduce_groups`: "none", or "host": shards add up what the
    workers of their host push before it goes on; the bits then depend on who shares a host. `skips_max`: so many
    rounds in a row that are skipped with the loss scale at its least, and no further one opens; 0 = 100.
    `snapshot_every`: the servers save a snapshot by themselves at each step that is a multiple of it, 0 = none;
    `snapshot_every_s`: or as so many seconds have passed, one of the two. `snapshot_keep`: of these the newest so many
    stay, 0 = all; as well `snapshot_keep_every`: of every so many steps the first one, for good, and
    `snapshot_keep_within_s`: all younger than that; `snapshot_max_bytes`: of all of them together, over it the oldest
    go. What has a tag, what somebody asked for and the newest verified one stay in any case. Of every snapshot:
    `snapshot_staging`, "state", or "small": little room for what updates overwrite meanwhile, for which they then may
    wait; `snapshot_durable_within_s`: when it is to be on disk; `snapshot_scrub_every_s`: when it is read again and
    checked, 0 = by command only; `snapshot_fallback`: a restore that finds it damaged takes the newest good one before
    it, and says so. `on_shard_loss`: "wait", or "restore-latest": when a shard came back without its part, or is away
    for more than `shard_loss_wait` seconds (0 = 300), the newest snapshot is restored, and the workers get RolledBack.
    `on_worker_loss`, when a worker was lost (one that closes the job is not): "redo": the step is done again at once
    with those who are left; "wait": no round opens before as many workers are there as before, `worker_loss_wait`
    seconds at most (0 = 300); "fail": they get Halted, until the job is amended or restored, or all have gone and
    others come. `workers_max`: attached at a time, 0 = as many as the cluster allows. `world`: how many workers come
    together; the first round after all were gone waits for so many, `start_wait` seconds at most; 0: for nobody beyond
    workers_min. `offload_fraction`: where a shard's state lies on a GPU, so much of it, 0 to 1, lies in host memory
    and is updated by the CPU, with the same bits. `tiers`: "together"; what lies apart is refused. `global_batch`: a
    step is so many micro-batches, whoever is there, and what they make does not depend on how many workers there are,
    nor on when they come and go (Round.micro_batches says which are this worker's; stage 2 or 3); 0: each worker has
    micro_batches of its own. `seed`: of Round.micro_seed, below 2^53. `first_step`: of the version that the job begins
    with, where a run that began elsewhere goes on. `missing_gradients`: what a round is to a trained tensor of which
    no worker pushed anything. "zero": its gradient is zeros, so its moments fade and its decay goes on; "leave": it
    stays as it is, and the step is none of its own count of updates, as torch.optim does where a grad is None.
    `buffers_every`: a worker writes its buffers after each step that is a multiple of it, and periodic snapshots are
    of the version which that makes; 0: nobody does."""

    tensors: Sequence[Tensor]
    groups: Sequence[Group] = field(default_factory=lambda: (Group(),))
    rank: int = 0
    workers_min: int = 1
    clip_norm: Optional[float] = 0.0
    loss_scale: float = 1.0
    loss_scale_policy: str = "default"
    on_nonfinite: str = "skip"
    stage: int = 2
    micro_batches: int = 1
    init_from: Optional[str] = None
    init_prefix: Optional[str] = None
    client_state_max: int = 0
    init_nonfinite_ok: bool = False
    init_extra_ok: bool = False
    reduce_groups: str = "none"
    skips_max: int = 0
    snapshot_every: int = 0
    snapshot_keep: int = 0
    on_shard_loss: str = "wait"
    shard_loss_wait: int = 0
    on_worker_loss: str = "redo"
    worker_loss_wait: int = 0
    workers_max: int = 0
    offload_fraction: float = 0.0
    tiers: str = "together"
    global_batch: int = 0
    seed: int = 0
    snapshot_every_s: int = 0
    snapshot_keep_every: int = 0
    snapshot_keep_within_s: int = 0
    snapshot_max_bytes: int = 0
    snapshot_staging: str = "state"
    snapshot_durable_within_s: int = 0
    snapshot_fallback: bool = False
    snapshot_scrub_every_s: int = 0
    first_step: int = 0
    missing_gradients: str = "zero"
    buffers_every: int = 0
    world: int = 0
    start_wait: float = START_WAIT_S
    chunk_leaves: int = 0
    window: int = 0


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
                      rank=at_least(0, "rank", spec.rank), workers_min=at_least(0, "workers_min", spec.workers_min),
                      clip_norm=_clip_norm(spec.clip_norm), loss_scale=spec.loss_scale,
                      on_nonfinite=number(NONFINITE, "on_nonfinite", spec.on_nonfinite),
                      loss_scale_policy=number(LOSS_SCALES, "loss_scale_policy", spec.loss_scale_policy),
                      stage=_c.stage(spec.stage),
                      micro_batches=at_least(0, "micro_batches", spec.micro_batches),
                      init_from=text(spec.init_from), init_prefix=text(spec.init_prefix),
                      client_state_max=at_least(0, "client_state_max", spec.client_state_max),
                      init_nonfinite_ok=bool(spec.init_nonfinite_ok), init_extra_ok=bool(spec.init_extra_ok),
                      reduce_groups=number(REDUCE_GROUPS, "reduce_groups", spec.reduce_groups),
                      skips_max=at_least(0, "skips_max", spec.skips_max),
                      snapshot_every=at_least(0, "snapshot_every", spec.snapshot_every, 2 ** 48),
                      snapshot_keep=at_least(0, "snapshot_keep", spec.snapshot_keep),
                      on_shard_loss=number(SHARD_LOSSES, "on_shard_loss", spec.on_shard_loss),
                      shard_loss_wait_s=at_least(0, "shard_loss_wait", spec.shard_loss_wait),
                      on_worker_loss=number(WORKER_LOSSES, "on_worker_loss", spec.on_worker_loss),
                      worker_loss_wait_s=at_least(0, "worker_loss_wait", spec.worker_loss_wait),
                      workers_max=at_least(0, "workers_max", spec.workers_max),
                      world=at_least(0, "world", spec.world) if _real("start_wait", spec.start_wait) > 0 else 0,
                      start_wait_ms=max(1, int(spec.start_wait * 1000)),
                      offload_fraction=_real("offload_fraction", spec.offload_fraction),
                      tiers=number(TIERS, "tiers", spec.tiers),
                      global_batch=at_least(0, "global_batch", spec.global_batch),
                      seed=at_least(0, "seed", spec.seed, 2 ** 53 - 1),
                      chunk_leaves=at_least(0, "chunk_leaves", spec.chunk_leaves),
                      window=at_least(0, "window", spec.window),
                      first_step=at_least(0, "first_step", spec.first_step, 2 ** 48),
                      missing_gradients=number(MISSING, "missing_gradients", spec.missing_gradients),
                      buffers_every=at_least(0, "buffers_every", spec.buffers_every, 2 ** 48),
                      **_snapshot_rules({name: getattr(spec, name) for name in SNAPSHOT_RULES}))
    return made, alive


def _strings(values: Sequence[Optional[str]], alive: List[Any]) -> Any:
    made = (ctypes.c_char_p * len(values))(*[text(value) for value in values])
    alive.append(made)
    return ctypes.cast(made, ctypes.POINTER(ctypes.c_char_p))


def _snapshot_rules(rules: Mapping[str, Any]) -> Dict[str, Any]:
    """What C takes of them."""
    unknown = sorted(set(rules) - set(SNAPSHOT_RULES))
    if unknown:
        raise Invalid(f"no rule of snapshots: {', '.join(unknown)}; there are {', '.join(SNAPSHOT_RULES)}")
    made: Dict[str, Any] = {name: at_least(0, name, value, 2 ** 60) for name, value in rules.items()
                            if name not in ("snapshot_staging", "snapshot_fallback")}
    made["snapshot_staging"] = number(STAGINGS, "snapshot_staging", rules.get("snapshot_staging", "state"))
    made["snapshot_fallback"] = bool(rules.get("snapshot_fallback", False))
    return made


def setting(value: Any) -> str:
    """As cairn.h has it: numbers, words, "yes" and "no"."""
    return value if isinstance(value, str) else ("no", "yes")[value] if isinstance(value, bool) else repr(value)


def amend_to_c(amendment: Amendment, revision: int) -> Tuple[_c.Amend, List[Any]]:
    """The same for an amendment."""
    alive: List[Any] = []
    a = amendment
    groups = (_c.Group * len(a.groups))(*[_group(group, alive) for group in a.groups])
    added = (_c.Tensor * len(a.add))(*[_tensor(tensor, alive) for tensor in a.add])
    ties = (_c.Tie * len(a.ties))(*[_c.Tie(text(name), text(target)) for name, target in a.ties.items()])
    thawed = a.unfreeze_tensors if isinstance(a.unfreeze_tensors, Mapping) else dict.fromkeys(a.unfreeze_tensors)
    settings = (_c.Setting * len(a.settings))(*[_c.Setting(text(key), text(setting(value)))
                                                for key, value in a.settings.items()])
    alive += [groups, added, ties, settings]
    every, keep = a.snapshots or (0, 0)
    on_loss, loss_wait = a.shard_loss or ("wait", 0)
    on_worker_loss, worker_loss_wait = a.worker_loss or ("redo", 0)
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
                    set_snapshots=a.snapshots is not None,
                    snapshot_every=at_least(0, "snapshot_every", every, 2 ** 48),
                    snapshot_keep=at_least(0, "snapshot_keep", keep), set_shard_loss=a.shard_loss is not None,
                    on_shard_loss=number(SHARD_LOSSES, "on_shard_loss", on_loss),
                    shard_loss_wait_s=at_least(0, "shard_loss_wait", loss_wait),
                    set_worker_loss=a.worker_loss is not None,
                    on_worker_loss=number(WORKER_LOSSES, "on_worker_loss", on_worker_loss),
                    worker_loss_wait_s=at_least(0, "worker_loss_wait", worker_loss_wait),
                    workers_min=least, workers_max=most, set_snapshot_rules=a.snapshot_rules is not None,
                    settings=ctypes.cast(settings, ctypes.POINTER(_c.Setting)), setting_count=len(settings),
                    **_snapshot_rules(a.snapshot_rules or {}))
    return made, alive
