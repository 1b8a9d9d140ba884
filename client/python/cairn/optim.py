"""The optimizers that the servers run, and how a torch optimizer becomes one of them.

    cairn.AdamW(lr=3e-4, weight_decay=0.1, groups={"*.bias": dict(weight_decay=0.0), "*norm*": dict(weight_decay=0.0)})

Defaults are torch's. `schedule`: constant(), linear(), cosine(), wsd() or table(), kept by the servers, or driven().
`ema`: the servers keep the exponential moving average of the parameters, with this decay, and `ema_schedule="warmup"`
lets it begin faster: cairn.reader(job).load_into(model, ema=True) reads it.
`groups`: patterns (of fnmatch, over tensor names) with what differs there; the first that matches counts. A pattern
that is left without a tensor is an error. What the servers do not run is refused by name, never replaced by
something near.
"""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass, field
from fnmatch import fnmatchcase
from typing import Any, Dict, Iterable, List, Mapping, Optional, Protocol, Sequence, Tuple

from .errors import Invalid, Unsupported, some_of
from . import _c
from .spec import Group, Schedule

Grouping = Tuple[List[Group], Dict[str, str]]  # the groups, and the group's name by tensor


class Optimizer(Protocol):
    """Anything that sorts tensors into groups."""

    def group(self, tensors: Sequence[str]) -> Grouping: ...


_INSTEAD = {  # what a trainer calls of a torch optimizer
    "step": "m.step() of the attached model makes the step",
    "zero_grad": "leave it out: after m.step() no gradient is left",
    "param_groups": "m.amend(…) changes a group, the lr of a step is in what m.step() returns",
    "state_dict": "leave it out: attach goes on with the job's state, m.snapshot() saves it",
    "load_state_dict": "leave it out: attach goes on with the job's state",
}


class _Described:
    """What AdamW, Adam and SGD have in common: a dataclass whose fields but `groups` are hyper-parameters."""

    groups: Mapping[str, Mapping[str, Any]]

    def __getattr__(self, name: str) -> Any:  # of what is not there
        kind = f"cairn.{type(self).__name__}"
        if name in _INSTEAD:
            raise AttributeError(f"{kind} has no {name}, it says what the servers run: {_INSTEAD[name]}")
        raise AttributeError(f"{kind} has no attribute {name!r}")

    def _hyper(self) -> Dict[str, Any]:
        return {f.name: getattr(self, f.name) for f in dataclasses.fields(self) if f.name != "groups"}  # type: ignore

    def _made(self, name: str, hyper: Mapping[str, Any]) -> Group:
        given = _with_betas(hyper)
        return Group(name=name, optimizer=type(self).__name__.lower(), **{k: _plain(k, v) for k, v in given.items()})

    def _group_of(self, pattern: str) -> Group:
        here, allowed = self.groups[pattern], self._hyper()
        unknown = sorted(set(here) - set(allowed))
        if unknown:
            raise Invalid(f"group {pattern!r}: {type(self).__name__} has no {', '.join(unknown)}; it has "
                          f"{', '.join(allowed)}")
        return self._made(pattern, {**allowed, **here})

    def group(self, tensors: Sequence[str]) -> Grouping:
        group_of: Dict[str, str] = {}
        for name in tensors:
            group_of[name] = next((p for p in self.groups if fnmatchcase(name, p)), "default")
        used = set(group_of.values())
        for pattern in self.groups:
            if pattern not in used:
                raise Invalid(_why_empty(pattern, tensors))
        made = [self._made("default", self._hyper())] if "default" in used else []
        return made + [self._group_of(pattern) for pattern in self.groups], group_of


def _with_betas(given: Mapping[str, Any]) -> Dict[str, Any]:
    """As a group has them."""
    named = dict(given)
    if "betas" in named:
        betas = named.pop("betas")
        if not isinstance(betas, (tuple, list)) or len(betas) != 2:
            raise Invalid(f"betas is {betas!r}; it is two numbers, such as (0.9, 0.999)")
        named["beta1"], named["beta2"] = betas
    return named


def _plain(name: str, value: Any) -> Any:
    if isinstance(value, (bool, Schedule)) or name == "ema_schedule":
        return value
    try:
        return float(value)
    except (TypeError, ValueError):
        raise Invalid(f"{name} is {value!r}, which is no number") from None


def changed_group(group: Group, change: Mapping[str, Any]) -> Group:
    """The group with other hyper-parameters; `betas` is understood."""
    given = _with_betas(change)
    allowed = [f.name for f in dataclasses.fields(Group) if f.name not in ("name", "optimizer")]
    if group.schedule.kind == _c.SCHEDULE_DRIVEN and ("lr" in given or "schedule" in given):
        raise Invalid(f"group {group.name!r} is driven: its lr comes with the commits, from the trainer's scheduler or "
                      "m.job.group_lr, and no amendment changes that")
    unknown = sorted(set(given) - set(allowed))
    if unknown:
        raise Invalid(f"group {group.name!r} has no {', '.join(unknown)}; it has {', '.join(allowed)}")
    return dataclasses.replace(group, **{name: _plain(name, value) for name, value in given.items()})


def group_settings(changes: Mapping[str, Mapping[str, Any]], groups: Sequence[Group]) -> Dict[str, Any]:
    """What `changes` say of `groups`, which have them already, as settings of an amendment: of what is left out nobody
    here knows what it is by now, since others may have amended it."""
    settings: Dict[str, Any] = {}
    for group in groups:
        given = set(changes[group.name])
        names = (given - {"betas", "schedule"}) | ({"beta1", "beta2"} if "betas" in given else set())
        settings.update({f"{group.name}.{name}": getattr(group, name) for name in sorted(names)})
        if "schedule" in given:
            settings.update({f"{group.name}.{name}": value for name, value in schedule_settings(group.schedule)})
    return settings


_SCHEDULES = {_c.SCHEDULE_CONSTANT: "constant", _c.SCHEDULE_LINEAR: "linear", _c.SCHEDULE_COSINE: "cosine",
              _c.SCHEDULE_WSD: "wsd", _c.SCHEDULE_TABLE: "table", _c.SCHEDULE_DRIVEN: "driven"}


def schedule_settings(schedule: Schedule) -> List[Tuple[str, Any]]:
    """All that it is."""
    points = ",".join(f"{step}:{factor!r}" for step, factor in schedule.points)
    return [("schedule", _SCHEDULES[schedule.kind]), ("points", points)] + [
        (name, getattr(schedule, name)) for name in ("warmup_steps", "total_steps", "decay_steps", "lr_min")]


def _why_empty(pattern: str, tensors: Iterable[str]) -> str:
    covered = [name for name in tensors if fnmatchcase(name, pattern)]
    if covered:
        return (f"the pattern {pattern!r} is left without a tensor: earlier patterns take all {len(covered)} that it "
                "matches; put it before them")
    return f"the pattern {pattern!r} matches no trained tensor; there are {some_of(list(tensors))}"


# ---- schedules: the learning rate of the round of step k, from 0 on; at lr_min from total_steps on ----

def constant(warmup_steps: int = 0) -> Schedule:
    """lr, after a linear warm-up."""
    return Schedule(_c.SCHEDULE_CONSTANT, warmup_steps)


def linear(total_steps: int, warmup_steps: int = 0, lr_min: float = 0.0) -> Schedule:
    """From lr to lr_min, as Hugging Face's get_linear_schedule_with_warmup."""
    return Schedule(_c.SCHEDULE_LINEAR, warmup_steps, total_steps, lr_min=lr_min)


def cosine(total_steps: int, warmup_steps: int = 0, lr_min: float = 0.0) -> Schedule:
    """Half a cosine from lr to lr_min."""
    return Schedule(_c.SCHEDULE_COSINE, warmup_steps, total_steps, lr_min=lr_min)


def wsd(total_steps: int, decay_steps: int, warmup_steps: int = 0, lr_min: float = 0.0) -> Schedule:
    """Warm-up, stable, then linear decay over the last decay_steps."""
    return Schedule(_c.SCHEDULE_WSD, warmup_steps, total_steps, decay_steps, lr_min)


def table(points: Sequence[Tuple[int, float]], warmup_steps: int = 0) -> Schedule:
    """lr times a factor, linear between the points (step, factor), flat outside."""
    return Schedule(_c.SCHEDULE_TABLE, warmup_steps, points=tuple((int(k), float(f)) for k, f in points))


def driven() -> Schedule:
    """What the trainer gives, on every worker before m.step(): m.job.group_lr(group, lr), and lr of cairn.AdamW is not
    looked at; or with from_torch(optimizer, schedule=cairn.driven()) the lr of that optimizer's param groups. A torch
    scheduler does it by itself: from_torch(optimizer, schedule=scheduler)."""
    return Schedule(_c.SCHEDULE_DRIVEN)


def why_no_moment(plane: str, value: Any) -> Optional[str]:
    """What no optimizer's state can be."""
    if plane == "exp_avg_sq" and bool((value < 0).any()):
        return "is below 0 in places, and it is a mean of squares, of which the update takes the root"
    if plane != "param" and not bool(value.isfinite().all()):
        return "is not finite in places, and no update makes that finite again"
    return None


def lr_is_zero(group: Group, step: int) -> bool:
    """In the round of this step, and, unless the schedule is a table, ever after."""
    schedule = group.schedule
    if schedule.kind == _c.SCHEDULE_TABLE:
        around = ([factor for at, factor in schedule.points if at <= step][-1:]
                  + [factor for at, factor in schedule.points if at >= step][:1])
        return group.lr == 0 or not any(around)
    if schedule.kind == _c.SCHEDULE_CONSTANT:
        return group.lr == 0
    return schedule.lr_min == 0 and (group.lr == 0 or step >= schedule.total_steps)


@dataclass(frozen=True)
class AdamW(_Described):
    """Decoupled weight decay, as torch.optim.AdamW."""

    lr: float = 1e-3
    betas: Tuple[float, float] = (0.9, 0.999)
    eps: float = 1e-8
    weight_decay: float = 1e-2
    schedule: Schedule = Schedule()
    groups: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    ema: float = 0.0
    ema_schedule: str = "constant"


@dataclass(frozen=True)
class Adam(_Described):
    """Weight decay added to the gradient, as torch.optim.Adam."""

    lr: float = 1e-3
    betas: Tuple[float, float] = (0.9, 0.999)
    eps: float = 1e-8
    weight_decay: float = 0.0
    schedule: Schedule = Schedule()
    groups: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    ema: float = 0.0
    ema_schedule: str = "constant"


@dataclass(frozen=True)
class SGD(_Described):
    """With momentum and Nesterov's, as torch.optim.SGD without dampening."""

    lr: float = 1e-3
    momentum: float = 0.0
    weight_decay: float = 0.0
    nesterov: bool = False
    schedule: Schedule = Schedule()
    groups: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    ema: float = 0.0
    ema_schedule: str = "constant"


# ---- torch.optim ----

_TAKEN = {  # of a param group: what becomes a hyper-parameter
    "AdamW": ("lr", "betas", "eps", "weight_decay"),
    "Adam": ("lr", "betas", "eps", "weight_decay"),
    "SGD": ("lr", "momentum", "weight_decay", "nesterov"),
}
_SAME = {"foreach", "fused", "capturable"}  # changes no result
_MUST_BE_OFF = ("amsgrad", "maximize", "differentiable", "dampening", "decoupled_weight_decay")


def is_off(kind: str, name: str, value: Any) -> bool:
    """Whether the servers run what a torch optimizer of that kind does with this option."""
    return name not in _MUST_BE_OFF or not value or (name == "decoupled_weight_decay" and kind == "AdamW")


class FromTorch:
    """A torch optimizer's groups, taken over as they are. Made by from_torch. `places`: the groups' names, and where
    they are in the optimizer; `driver`: gives their learning rates, if no schedule of the servers does."""

    def __init__(self, optimizer: Any, groups: List[Tuple[Group, List[int]]], places: List[Tuple[str, int]],
                 driver: Any = None):
        self.kind, self.optimizer, self.places, self.driver = type(optimizer).__name__, optimizer, places, driver
        self.options = _TAKEN[self.kind]
        self._groups = groups
        # the ids of all its parameters, by param group: how torch numbers its state
        self.order = [[id(p) for p in options["params"]] for options in optimizer.param_groups]

    def group(self, tensors: Sequence[str]) -> Grouping:
        raise Invalid("a torch optimizer knows parameters, not names; give it to attach with its model")

    def group_parameters(self, parameters: Mapping[str, Any]) -> Grouping:
        """By name -> Parameter of the trained tensors."""
        group_at = {number: group.name for group, members in self._groups for number in members}
        missing = [name for name, p in parameters.items() if id(p) not in group_at]
        if len(missing) == len(parameters):
            raise Invalid(f"the {self.kind} has no trained parameter of this model: it is of another one, or one of "
                          f"the two was copied, unpickled or moved since. Make it anew, torch.optim.{self.kind}("
                          "model.parameters(), …), and its scheduler of that")
        if missing:
            raise Invalid(f"the optimizer does not have {some_of(missing)}; add them to it, or freeze them "
                          "(requires_grad_(False))")
        group_of = {name: group_at[id(p)] for name, p in parameters.items()}
        used = set(group_of.values())
        foreign = [group.name for group, _ in self._groups if group.name not in used]
        if foreign:
            raise Invalid(f"{', '.join(foreign)} of the optimizer has no trained parameter of this model")
        beyond = len(set(group_at) - {id(p) for p in parameters.values()})
        if beyond:
            raise Invalid(f"the {self.kind} has {beyond} trained parameters that are not of this model, which nobody "
                          "would train: make one of this model's parameters alone, and another one of the others")
        return [group for group, _ in self._groups], group_of


def judge_option(kind: str, name: str, value: Any) -> None:
    if not is_off(kind, name, value):
        instead = "torch.optim.AdamW is that" if name == "decoupled_weight_decay" else f"they run it with {name} off"
        raise Unsupported(f"torch.optim.{kind} with {name}={value}: the servers do not run that; {instead}")


def _judge_options(optimizer: Any, options: Mapping[str, Any]) -> None:
    """Keys that the optimizer has no default of are the trainer's own, or a scheduler's: torch does not read them."""
    kind = type(optimizer).__name__
    for name in _MUST_BE_OFF:
        judge_option(kind, name, options.get(name))
    unknown = sorted(set(options) & set(optimizer.defaults) - set(_TAKEN[kind]) - _SAME - set(_MUST_BE_OFF))
    if unknown:
        raise Unsupported(f"torch.optim.{kind} has {', '.join(unknown)}, which this package does not know")


def number_of(kind: str, name: str, value: Any) -> Any:
    """An option as the servers take it: a tensor of one element is its value."""
    if name == "betas" and isinstance(value, (tuple, list)) and len(value) == 2:
        return tuple(number_of(kind, f"betas[{i}]", one) for i, one in enumerate(value))
    try:
        return bool(value) if name == "nesterov" else float(value)
    except (TypeError, ValueError, RuntimeError):
        raise Invalid(f"{name} of the torch {kind} is {type(value).__name__} {value!r}: the servers take one number; "
                      f"give {name}=float(…)") from None


def _first_lr(kind: str, options: Mapping[str, Any], schedule: Any) -> float:
    """The lr that the schedule begins from. A torch scheduler, which would change another one than the servers', sets
    initial_lr."""
    lr: float = number_of(kind, "lr", options.get("initial_lr", options["lr"]))
    if schedule is None and "initial_lr" in options:
        raise Unsupported(
            f"a torch scheduler drives this {kind} (its param groups have an initial_lr): it would change lr here, "
            f"and the servers would stay at {float(options['lr']):g}. Give it: cairn.from_torch(optimizer, "
            "schedule=scheduler), and m.step() moves it on. Or let the servers run the schedule: leave the "
            f"scheduler out and give attach cairn.{kind}(lr={lr:g}, schedule=cairn.cosine(total_steps=…, "
            "warmup_steps=…)), or linear, wsd, constant(warmup_steps=…), for another LambdaLR "
            "table([(step, factor), …]); to keep the optimizer's param groups: cairn.from_torch(optimizer, "
            "schedule=…)")
    return lr


def _judge_optimizer(optimizer: Any) -> str:
    """Its kind."""
    kind = type(optimizer).__name__
    if isinstance(optimizer, type):
        raise Invalid(f"{optimizer.__name__} is a class: give an instance, as in {optimizer.__name__}("
                      "model.parameters(), lr=…)")
    if type(optimizer).__module__ == "torch.optim.lr_scheduler":
        raise Invalid(f"{kind} is a scheduler: give cairn.from_torch(optimizer, schedule=scheduler)")
    if not type(optimizer).__module__.startswith("torch.optim") or kind not in _TAKEN:
        raise Unsupported(f"{type(optimizer).__module__}.{kind} is not run by the servers, and nothing is put in its "
                          "place. They run torch.optim.AdamW, Adam and SGD: use one of them, or keep this one in the "
                          "trainer without Cairn")
    if any(optimizer.state.values()):  # an empty one is there when somebody has asked for it
        raise Unsupported(f"the {kind} has made steps already, or loaded a state, and attach does not take its moments "
                          "over. Attach before the first step; a job that goes on with them begins by "
                          "cairn.import_checkpoint, from a file of torch.save({'model': …, 'optimizer': …})")
    return kind


def _driver_of(optimizer: Any, schedule: Any) -> Any:
    """What makes driver() and schedule of the servers of it: a torch scheduler, or driven(); None: the servers do."""
    if isinstance(schedule, Schedule):
        if schedule.kind != _c.SCHEDULE_DRIVEN:
            return None
        from ._optimizers import Followed
        return Followed
    if schedule is None:
        return None
    from ._optimizers import Driver, is_scheduler, judge  # torch is there: the optimizer is of it
    if not is_scheduler(schedule):
        raise Invalid(f"schedule is a {type(schedule).__name__}: give cairn.cosine(…), linear, wsd, constant, table, a "
                      "scheduler of torch.optim.lr_scheduler, or, for one of another package, cairn.driven(): each "
                      "m.step() then goes by the lr that the optimizer's param groups have")
    judge(schedule, optimizer)
    return lambda _, places: Driver(schedule, places)


def from_torch(optimizer: Any, schedule: Any = None, ema: float = 0.0, ema_schedule: str = "constant") -> FromTorch:
    """torch.optim.AdamW, Adam or SGD (exactly these, not subclasses) with their param_groups. Whatever else there is
    is refused with a sentence: another optimizer would train another model. `schedule`: the servers' own, cosine(),
    linear() and so on, of all its groups, from their initial lr; or the optimizer's torch scheduler, as it was made:
    m.step() moves it on when a round is applied, and sets it to the job's step after an attach or a restore; or
    driven(): each m.step() goes by the lr that the param groups have then, which the trainer sets by hand or by a
    scheduler that it moves on, and sets again after a restore. The lr of torch goes with the commits, that of the
    round's rank 0 counts, so every worker has one. `ema`, `ema_schedule`: of all its groups, as of cairn.AdamW."""
    kind = _judge_optimizer(optimizer)
    make_driver = _driver_of(optimizer, schedule)
    if make_driver is not None:
        schedule = driven()
    groups, places = [], []
    for i, options in enumerate(optimizer.param_groups):
        _judge_options(optimizer, options)
        members = [id(p) for p in options["params"] if p.requires_grad]
        if not members:
            continue
        made = {name: number_of(kind, name, options[name]) for name in _TAKEN[kind]}
        made["lr"] = _first_lr(kind, options, schedule)
        made["schedule"] = Schedule() if schedule is None else schedule
        made.update(ema=ema, ema_schedule=ema_schedule)
        described = _BY_NAME[kind](**made)
        name = "default" if i == 0 else f"group{i}"
        groups.append((described._made(name, made), members))
        places.append((name, i))
    if make_driver is None and groups and all(group.lr == 0 for group, _ in groups):
        raise Invalid(f"the lr of every param group of the {kind} is 0, and the servers would keep it so: nothing "
                      "would be trained. Give the lr that a schedule begins from, or freeze the parameters "
                      "(requires_grad_(False))")
    return FromTorch(optimizer, groups, places, make_driver(optimizer, places) if make_driver is not None else None)


_BY_NAME = {"AdamW": AdamW, "Adam": Adam, "SGD": SGD}
