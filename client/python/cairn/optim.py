"""The optimizers that the servers run, and how a torch optimizer becomes one of them.

    cairn.AdamW(lr=3e-4, weight_decay=0.1, groups={"*.bias": dict(weight_decay=0.0), "*norm*": dict(weight_decay=0.0)})

Defaults are torch's. `schedule`: constant(), linear(), cosine(), wsd() or table(), kept by the servers, or driven().
`groups`: patterns (of fnmatch, over tensor names) with what differs there; the first that matches counts. A pattern
that is left without a tensor is an error. What the servers do not run is refused by name, never replaced by
something near.
"""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass, field
from fnmatch import fnmatchcase
from typing import Any, Dict, Iterable, List, Mapping, Optional, Protocol, Sequence, Tuple

from .errors import Invalid, Unsupported
from . import _c
from ._driven import Driver, is_scheduler, judge
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
        given = dict(hyper)
        if "betas" in given:
            given["beta1"], given["beta2"] = given.pop("betas")
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


def _plain(name: str, value: Any) -> Any:
    return value if isinstance(value, (bool, Schedule)) else float(value)


def changed_group(group: Group, change: Mapping[str, Any]) -> Group:
    """The group with other hyper-parameters; `betas` is understood."""
    given = dict(change)
    if "betas" in given:
        given["beta1"], given["beta2"] = given.pop("betas")
    allowed = [f.name for f in dataclasses.fields(Group) if f.name not in ("name", "optimizer")]
    if group.schedule.kind == _c.SCHEDULE_DRIVEN and ("lr" in given or "schedule" in given):
        raise Invalid(f"group {group.name!r} is driven: its lr comes with the commits, from the trainer's scheduler or "
                      "m.job.group_lr, and no amendment changes that")
    unknown = sorted(set(given) - set(allowed))
    if unknown:
        raise Invalid(f"group {group.name!r} has no {', '.join(unknown)}; it has {', '.join(allowed)}")
    return dataclasses.replace(group, **{name: _plain(name, value) for name, value in given.items()})


def _why_empty(pattern: str, tensors: Iterable[str]) -> str:
    covered = [name for name in tensors if fnmatchcase(name, pattern)]
    if covered:
        return (f"the pattern {pattern!r} is left without a tensor: earlier patterns take all {len(covered)} that it "
                "matches; put it before them")
    return f"the pattern {pattern!r} matches no trained tensor; there are {_some(list(tensors))}"


def _some(names: List[str]) -> str:
    return ", ".join(names[:5]) + (f" and {len(names) - 5} more" if len(names) > 5 else "")


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
    """What the trainer gives: m.job.group_lr(group, lr), on every worker before m.step(); lr of the optimizer is not
    looked at. A torch scheduler does it by itself: from_torch(optimizer, schedule=scheduler)."""
    return Schedule(_c.SCHEDULE_DRIVEN)


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


@dataclass(frozen=True)
class Adam(_Described):
    """Weight decay added to the gradient, as torch.optim.Adam."""

    lr: float = 1e-3
    betas: Tuple[float, float] = (0.9, 0.999)
    eps: float = 1e-8
    weight_decay: float = 0.0
    schedule: Schedule = Schedule()
    groups: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)


@dataclass(frozen=True)
class SGD(_Described):
    """With momentum and Nesterov's, as torch.optim.SGD without dampening."""

    lr: float = 1e-3
    momentum: float = 0.0
    weight_decay: float = 0.0
    nesterov: bool = False
    schedule: Schedule = Schedule()
    groups: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)


# ---- torch.optim ----

_TAKEN = {  # of a param group: what becomes a hyper-parameter
    "AdamW": ("lr", "betas", "eps", "weight_decay"),
    "Adam": ("lr", "betas", "eps", "weight_decay"),
    "SGD": ("lr", "momentum", "weight_decay", "nesterov"),
}
_SAME = {"params", "param_names", "foreach", "fused", "capturable", "initial_lr", "name",  # changes no result
         "max_lr", "min_lr", "base_momentum", "max_momentum"}  # a scheduler's, which is judged by what it does
_MUST_BE_OFF = ("amsgrad", "maximize", "differentiable", "dampening", "decoupled_weight_decay")


def _lrs(optimizer: Any) -> List[float]:
    return [] if optimizer is None else [float(options["lr"]) for options in optimizer.param_groups]


class FromTorch:
    """A torch optimizer's groups, taken over as they are. Made by from_torch."""

    def __init__(self, kind: str, groups: List[Tuple[Group, List[int]]], optimizer: Any = None,
                 driver: Optional[Driver] = None):
        self.kind, self._groups, self.driver = kind, groups, driver
        self._optimizer, self._lrs = optimizer, _lrs(optimizer)
        self.order: List[List[int]] = []  # the ids of all its parameters, by param group: how torch numbers its state

    def changed(self) -> Optional[str]:
        """What of the torch optimizer's lr is another one since; None: nothing."""
        for i, (was, now) in enumerate(zip(self._lrs, _lrs(self._optimizer))):
            if was != now:
                return f"the lr of param group {i} of the torch {self.kind} went from {was:g} to {now:g}"
        return None

    def group(self, tensors: Sequence[str]) -> Grouping:
        raise Invalid("a torch optimizer knows parameters, not names; give it to attach with its model")

    def group_parameters(self, parameters: Mapping[str, Any]) -> Grouping:
        """By name -> Parameter of the trained tensors."""
        group_at = {number: group.name for group, members in self._groups for number in members}
        missing = [name for name, p in parameters.items() if id(p) not in group_at]
        if missing:
            raise Invalid(f"the optimizer does not have {_some(missing)}; add them to it, or freeze them "
                          "(requires_grad_(False))")
        group_of = {name: group_at[id(p)] for name, p in parameters.items()}
        used = set(group_of.values())
        foreign = [group.name for group, _ in self._groups if group.name not in used]
        if foreign:
            raise Invalid(f"{', '.join(foreign)} of the optimizer has no trained parameter of this model")
        return [group for group, _ in self._groups], group_of


def _judge_options(kind: str, options: Mapping[str, Any]) -> None:
    for name in _MUST_BE_OFF:
        if options.get(name) and not (name == "decoupled_weight_decay" and kind == "AdamW"):
            raise Unsupported(f"torch.optim.{kind} with {name}={options[name]}: the servers do not run that; "
                              f"they run it with {name} off")
    unknown = sorted(set(options) - set(_TAKEN[kind]) - _SAME - set(_MUST_BE_OFF))
    if unknown:
        raise Unsupported(f"torch.optim.{kind} has {', '.join(unknown)}, which this package does not know")


def _judge_scheduler(kind: str, options: Mapping[str, Any], schedule: Any) -> float:
    """The lr that the schedule begins from. A torch scheduler, which would change another one than the servers', sets
    initial_lr."""
    lr = float(options.get("initial_lr", options["lr"]))
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


def from_torch(optimizer: Any, schedule: Any = None) -> FromTorch:
    """torch.optim.AdamW, Adam or SGD (exactly these, not subclasses) with their param_groups. Whatever else there is
    is refused with a sentence: another optimizer would train another model. `schedule`: the servers' own, cosine(),
    linear() and so on, of all its groups, from their initial lr; or the optimizer's torch scheduler, as it was made:
    m.step() moves it on when a round is applied, and sets it to the job's step after an attach or a restore; its lr
    goes with the commits, that of the round's rank 0 counts, so every worker has one."""
    kind = type(optimizer).__name__
    if not type(optimizer).__module__.startswith("torch.optim") or kind not in _TAKEN:
        raise Unsupported(f"{type(optimizer).__module__}.{kind} is not run by the servers, and nothing is put in its "
                          "place. They run torch.optim.AdamW, Adam and SGD: use one of them, or keep this one in the "
                          "trainer without Cairn")
    if optimizer.state:
        raise Unsupported(f"the {kind} has made steps already; its moments cannot be taken over in this version. "
                          "Attach before the first step")
    scheduler = schedule if is_scheduler(schedule) else None
    if scheduler is not None:
        judge(scheduler, optimizer)
        schedule = driven()
    groups, places = [], []
    for i, options in enumerate(optimizer.param_groups):
        _judge_options(kind, options)
        members = [id(p) for p in options["params"] if p.requires_grad]
        if not members:
            continue
        made = {name: options[name] for name in _TAKEN[kind]}
        made["lr"] = _judge_scheduler(kind, options, schedule)
        made["schedule"] = Schedule() if schedule is None else schedule
        described = _BY_NAME[kind](**made)
        name = "default" if i == 0 else f"group{i}"
        groups.append((described._made(name, made), members))
        places.append((name, i))
    if groups and all(group.lr == 0 for group, _ in groups):
        raise Invalid(f"the lr of every param group of the {kind} is 0, and the servers would keep it so: nothing "
                      "would be trained. Give the lr that a schedule begins from, or freeze the parameters "
                      "(requires_grad_(False))")
    driver = Driver(scheduler, places) if scheduler is not None else None
    taken = FromTorch(kind, groups, optimizer if schedule is None else None, driver)  # else its lr counts for nothing
    taken.order = [[id(p) for p in options["params"]] for options in optimizer.param_groups]
    return taken


_BY_NAME = {"AdamW": AdamW, "Adam": Adam, "SGD": SGD}
