"""The optimizer of a checkpoint against the job's: by which rule its moments were made, and whether the job goes on
by that. Moments of another rule are numbers without a meaning here, so they are refused, never taken for something
near."""

from __future__ import annotations

import contextlib
from dataclasses import dataclass
from typing import Any, Dict, List, Mapping, Optional, Sequence, Tuple

from .errors import Invalid, Mismatch
from .spec import Group, Schedule

# What a job's optimizer keeps: our plane of it, by torch's name.
KEPT = {"adamw": {"exp_avg": "exp_avg", "exp_avg_sq": "exp_avg_sq"},
        "adam": {"exp_avg": "exp_avg", "exp_avg_sq": "exp_avg_sq"},
        "sgd": {"momentum_buffer": "exp_avg"}}
_TORCHS = {"adamw": "AdamW", "adam": "Adam", "sgd": "SGD"}

# Whose options, or arrays, these are. The first that fits: its name, and the servers' of the same rule.
_BY_OPTION: List[Tuple[str, frozenset, Tuple[str, ...]]] = [
    ("Muon", frozenset(["ns_steps"]), ()),
    ("RMSprop", frozenset(["alpha", "centered"]), ()),
    ("NAdam", frozenset(["momentum_decay"]), ()),
    ("Adagrad", frozenset(["lr_decay"]), ()),
    ("Adadelta", frozenset(["rho"]), ()),
    ("ASGD", frozenset(["lambd"]), ()),
    ("Rprop", frozenset(["etas"]), ()),
    ("LBFGS", frozenset(["max_iter"]), ()),
    ("Adafactor", frozenset(["beta2_decay"]), ()),
    ("Adafactor", frozenset(["scale_parameter"]), ()),
    ("SGD", frozenset(["dampening"]), ("sgd",)),
    ("Adam or AdamW", frozenset(["betas", "amsgrad"]), ("adam", "adamw")),
    ("FusedAdam", frozenset(["betas", "bias_correction"]), ("adam", "adamw")),
    ("AdamW of transformers", frozenset(["betas", "correct_bias"]), ("adamw",)),
    ("RAdam", frozenset(["betas", "eps", "maximize", "decoupled_weight_decay"]), ()),
    ("Adamax", frozenset(["betas", "eps", "maximize"]), ()),
]
_BY_ARRAY: List[Tuple[str, frozenset, Tuple[str, ...]]] = [
    ("Adamax", frozenset(["exp_inf"]), ()),
    ("NAdam", frozenset(["mu_product"]), ()),
    ("RMSprop", frozenset(["square_avg"]), ()),
    ("Adam with amsgrad", frozenset(["max_exp_avg_sq"]), ()),
    ("Adagrad", frozenset(["sum"]), ()),
    ("an optimizer of 8 bits", frozenset(["state1"]), ()),
    ("Adam or AdamW", frozenset(["exp_avg", "exp_avg_sq"]), ("adam", "adamw")),
    ("Lion, or another one with exp_avg alone", frozenset(["exp_avg"]), ()),
    ("SGD", frozenset(["momentum_buffer"]), ("sgd",)),
]
_ON = {"maximize": True, "amsgrad": True}  # what the servers do not run, if it is this
_OFF = {"bias_correction": False, "correct_bias": False}


@dataclass
class Source:
    """The optimizer's state of a checkpoint, by the job's names."""

    where: str
    state: Dict[str, Dict[str, Any]]
    options: Dict[str, Dict[str, Any]]
    unread: int

    def arrays(self) -> frozenset:
        return frozenset(what for arrays in self.state.values() for what, value in arrays.items() if value is not None)

    def kind(self) -> Tuple[str, Tuple[str, ...]]:
        """What it is called, and which of the servers' optimizers go by its rule."""
        options, arrays = frozenset().union(*self.options.values()) if self.options else frozenset(), self.arrays()
        known = next(((name, ours) for name, needs, ours in _BY_OPTION if needs <= options), None)
        held = next(((name, ours) for name, needs, ours in _BY_ARRAY if needs <= arrays), None)
        is_told = held is not None and held[0] == "Adam with amsgrad" and "amsgrad" in options
        if held is not None and not held[1] and (known is None or known[1]) and not is_told:
            return held  # its arrays betray another one than its options
        name, ours = known or held or ("an optimizer without state", ("adamw", "adam", "sgd"))
        said = {bool(one["decoupled_weight_decay"]) for one in self.options.values()
                if one.get("decoupled_weight_decay") is not None}
        if name == "Adam or AdamW" and len(said) == 1:
            name = "AdamW" if said.pop() else "Adam"
        return name, ours


def of_group(group: Mapping[str, Any]) -> Dict[str, Any]:
    """The options of a group of a snapshot's manifest, as torch calls them."""
    if group["optimizer"] == "sgd":
        return {**{key: group[key] for key in ("lr", "momentum", "weight_decay", "nesterov")}, "dampening": 0}
    return {"lr": group["lr"], "betas": (group["beta1"], group["beta2"]), "eps": group["eps"], "amsgrad": False,
            "weight_decay": group["weight_decay"], "decoupled_weight_decay": group["optimizer"] == "adamw"}


def _against(group: Group, options: Mapping[str, Any]) -> List[str]:
    """The options by which moments mean something else than the job's group takes them for."""
    wrong = [f"{name}={options[name]}" for name, bad in {**_ON, **_OFF}.items()
             if options.get(name) is not None and bool(options[name]) == bad]
    if group.optimizer == "sgd" and options.get("dampening"):
        wrong.append(f"dampening={options['dampening']:g}")
    decoupled, decay = options.get("decoupled_weight_decay"), options.get("weight_decay")
    if decoupled is not None and decay and group.optimizer in ("adam", "adamw"):
        if bool(decoupled) != (group.optimizer == "adamw"):
            wrong.append(f"weight_decay={decay:g} " + ("beside the moments, as AdamW has it" if decoupled else
                                                      "added to the gradient, as Adam has it"))
    return wrong


def judge(what: str, source: Source, group_of: Mapping[str, Group], allow: Sequence[str]) -> None:
    """Mismatch: its moments are of another rule than the job's. `allow`: options that may be other ones."""
    name, ours = source.kind()
    wrong: Dict[str, int] = {}
    for tensor, group in group_of.items():
        if KEPT.get(group.optimizer) is None or (group.optimizer == "sgd" and not group.momentum):
            continue
        if group.optimizer not in ours:
            raise Mismatch(f"{what}: its moments are those of {name}, and the job's optimizer is "
                           f"{_TORCHS[group.optimizer]}, to which they mean nothing; give the optimizer that the file "
                           "is of, or take the weights alone: moments=False")
        for one in _against(group, source.options.get(tensor, {})):
            if one.split("=")[0] not in allow:
                wrong[one] = wrong.get(one, 0) + 1
    if wrong:
        told = ", ".join(f"{one} (of {count} tensors)" for one, count in wrong.items())
        names = sorted({one.split("=")[0] for one in wrong})
        raise Mismatch(f"{what}: its {name} ran with {told}, and the job's does not: its moments would mean something "
                       f"else here. Take the weights alone, moments=False, or the moments all the same: "
                       f"allow_options={names!r}")


def unsaid(source: Source, group_of: Mapping[str, Group]) -> Optional[str]:
    """What the checkpoint leaves open of its rule; for the one line."""
    adams = [tensor for tensor, group in group_of.items() if group.optimizer in ("adam", "adamw")]
    if not source.options and adams + [t for t, g in group_of.items() if g.optimizer == "sgd" and g.momentum]:
        return "it does not say with which options they were made"
    if any(source.options.get(tensor, {}).get("weight_decay") and
           source.options[tensor].get("decoupled_weight_decay") is None for tensor in adams):
        if "Adam or AdamW" in source.kind()[0]:
            return "it does not say whether its weight_decay was Adam's or AdamW's"
    return None


# ---- names of what is numbered ----


def _given(optimizer: Any, names: Mapping[int, str]) -> Optional[List[List[str]]]:
    """Of a torch optimizer: its parameters' names, group by group; `names`: by id. None: it is none of torch's."""
    order = getattr(optimizer, "order", None)  # of from_torch
    if order is None and hasattr(optimizer, "param_groups"):
        order = [[id(p) for p in group["params"]] for group in optimizer.param_groups]
    if not order:
        return None
    return [[names.get(number, "") for number in group] for group in order]


def _told(where: str, groups: Sequence[Mapping[str, Any]]) -> Optional[List[List[str]]]:
    if not all(isinstance(group.get("param_names"), (list, tuple)) for group in groups):
        return None
    told = [[str(name) for name in group["param_names"]] for group in groups]
    if [len(group) for group in told] != [len(group["params"]) for group in groups]:
        raise Invalid(f"{where}: param_names and params are of different lengths")
    return told


def _differ(where: str, what: str, theirs: Sequence[str], told: Sequence[str]) -> None:
    for number, (a, b) in enumerate(zip(theirs, told)):
        if a != b:
            raise Mismatch(f"{where}: parameter {number} is {b} there and {a} by {what}: moments would be swapped. "
                           "Give the names, or the optimizer's parameters, in the order of the file")
    if len(theirs) != len(told):
        raise Mismatch(f"{where} has {len(told)} parameters, and by {what} there are {len(theirs)}")


def numbered(where: str, groups: Optional[Sequence[Mapping[str, Any]]], optimizer: Any, by_id: Mapping[int, str],
             names: Optional[Sequence[str]], clean: Any) -> Dict[str, str]:
    """{number as text: name} of a state that goes by numbers: as the file itself names them, the torch optimizer that
    the job was given has them, or `names`. `clean`: of a name of theirs, the model's."""
    if not groups:
        raise Invalid(f"{where}: the optimizer's state is numbered, and its param_groups, by which numbers become "
                      "names, are not there or not read as data")
    numbers = [[str(number) for number in group["params"]] for group in groups]
    told, given = _told(where, groups), _given(optimizer, by_id)
    flat = [number for group in numbers for number in group]
    if given is not None:
        if [len(group) for group in given] != [len(group) for group in numbers]:
            raise Mismatch(f"{where}: its param groups have {', '.join(str(len(g)) for g in numbers)} parameters, "
                           f"those of the optimizer that was given {', '.join(str(len(g)) for g in given)}: give it "
                           "the groups of the file, in their order")
    order = [clean(name) for group in told for name in group] if told is not None else None
    for what, other in (("names=[…]", None if names is None else [clean(name) for name in names]),
                        ("the optimizer", None if given is None else [name for group in given for name in group])):
        if other is None:
            continue
        if order is not None:
            _differ(where, what, other, order)
        order = other
    if order is None:
        raise Invalid(f"{where}: the optimizer's state is numbered, not named: give the torch optimizer itself, made "
                      "of the model's parameters as the run made it, or names=[…], the parameters' names in the order "
                      "in which the optimizer was given them")
    if len(order) != len(flat):
        raise Mismatch(f"{where}: the optimizer has {len(flat)} parameters, and names=[…] are {len(order)}")
    return dict(zip(flat, order))


# ---- numbers ----

_HYPER = {"lr": "lr", "eps": "eps", "weight_decay": "weight_decay", "momentum": "momentum", "nesterov": "nesterov"}


def numbers(options: Mapping[str, Any]) -> Dict[str, float]:
    """By our names; what is no number is another optimizer's, and not compared."""
    theirs = {ours: options[key] for key, ours in _HYPER.items() if key in options}
    betas = options.get("betas")
    if isinstance(betas, (list, tuple)) and len(betas) == 2:
        theirs["beta1"], theirs["beta2"] = betas
    found: Dict[str, float] = {}
    for key, value in theirs.items():
        with contextlib.suppress(TypeError, ValueError, RuntimeError):
            found[key] = float(value)
    return found


def _as_begun(options: Mapping[str, Any], mine: Group) -> Mapping[str, Any]:
    """With a schedule the group's lr is the one that it begins from, and so is initial_lr, which a torch scheduler
    leaves; where the file has none, its lr of that moment is no other one."""
    if mine.schedule == Schedule():
        return options
    begun = {key: value for key, value in options.items() if key != "lr"}
    return {**begun, "lr": options["initial_lr"]} if "initial_lr" in options else begun


def differences(options: Mapping[str, Mapping[str, Any]], group_of: Mapping[str, Group]) -> List[str]:
    """Of hyper-parameters: the job's count."""
    seen, told = set(), []
    for tensor, mine in group_of.items():
        for key, value in numbers(_as_begun(options.get(tensor, {}), mine)).items():
            ours = getattr(mine, key, None)
            if ours is not None and float(ours) != value and (mine.name, key) not in seen:
                seen.add((mine.name, key))
                told.append(f"group {mine.name} has {key} {ours}, the checkpoint {value:g}: the job's counts")
    return told
