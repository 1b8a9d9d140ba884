"""What of a checkpoint's tree is the weights of a model, and what the state of its optimizer, whatever dicts a program
has put around them. Weights are found by the model's names: the place where most of them are. The state of an
optimizer is a dict with `state` and `param_groups`, wherever it stands, or the keys that torch makes of it when it is
flattened."""

from __future__ import annotations

import re
from collections import Counter
from dataclasses import dataclass, field
from typing import Any, Dict, Iterator, List, Mapping, Optional, Sequence, Tuple

from ._stored import Stored
from ._tree import Tree, is_tensor
from .errors import Invalid, Mismatch

Path = Tuple[Any, ...]

_WRAPPERS = ("_orig_mod.", "_fsdp_wrapped_module.", "_checkpoint_wrapped_module.")
_USUAL = {"model", "module", "state_dict", "model_state_dict", "app", "net", "network", "trainer", "weights"}
_ARRAYS = ("step exp_avg exp_avg_sq max_exp_avg_sq exp_inf mu_product momentum_buffer square_avg grad_avg acc_delta "
           "sum prev step_size eta mu ax row_var col_var variance fp32_param master_param main_param").split()
_FLAT = re.compile(r"^(?P<head>(?:.*\.)?)state\.(?P<name>.+)\.(?P<what>%s)$" % "|".join(_ARRAYS))
_BY_ARRAY = re.compile(r"^(?P<head>(?:.*\.)?)state\.(?P<what>%s)\.(?P<name>.+)$" % "|".join(_ARRAYS))  # Megatron's
_OPTION = re.compile(r"^(?P<head>(?:.*\.)?)param_groups?\.(?P<name>.+)\.(?P<what>[a-z0-9_]+)$")
_STEPS = ("global_step", "step", "iteration", "optimizer_step", "max_steps_done")
DEPTH = 24


def bare(name: str) -> str:
    """Without what wraps a module."""
    for word in _WRAPPERS:
        name = name.replace(word, "")
    return name


def dotted(path: Sequence[Any]) -> str:
    return ".".join(str(part) for part in path)


@dataclass
class OptimizerState:
    where: str  # in the tree, for people
    state: Dict[str, Dict[str, Any]] = field(default_factory=dict)  # by a parameter's name, or its number as text
    groups: Optional[List[Dict[str, Any]]] = None  # as torch has them, with `params`
    options: Dict[str, Dict[str, Any]] = field(default_factory=dict)  # by name, where groups are None
    unread: int = 0  # options that this torch does not read as data

    @property
    def is_numbered(self) -> bool:
        if self.groups is not None and any(not isinstance(one, str) for group in self.groups
                                           for one in group.get("params", ())):
            return True
        return bool(self.state) and all(name.isdigit() for name in self.state)


@dataclass
class Contents:
    """Of the whole tree."""

    tensors: Dict[str, Any] = field(default_factory=dict)  # by dotted path, without wrappers
    paths: Dict[str, Path] = field(default_factory=dict)
    objects: Dict[str, Any] = field(default_factory=dict)  # what is no tensor and no container
    optimizers: List[OptimizerState] = field(default_factory=list)


# ---- the walk ----


def _items(value: Any) -> Optional[Iterator[Tuple[Any, Any]]]:
    if isinstance(value, dict):
        return iter(value.items())
    return iter(enumerate(value)) if isinstance(value, (list, tuple)) and not isinstance(value, str) else None


def _walk(value: Any, path: Path, into: Contents) -> None:
    if len(path) > DEPTH:
        return
    if isinstance(value, dict) and isinstance(value.get("state"), dict) and "param_groups" in value:
        into.optimizers.append(_nested(value, path))
        return
    if is_tensor(value):
        name = bare(dotted(path))
        into.tensors[name], into.paths[name] = value, path
        return
    inside = _items(value)
    if inside is None:
        into.objects[bare(dotted(path))] = value
        return
    for key, one in inside:
        if path or key != "manifest":
            _walk(one, (*path, key), into)


def value_of(leaf: Any) -> Any:
    return leaf.value() if isinstance(leaf, Stored) else leaf


def _nested(value: Mapping[str, Any], path: Path) -> OptimizerState:
    found = OptimizerState(dotted(path) or "the file")
    for name, arrays in value["state"].items():
        if isinstance(arrays, dict):
            found.state[bare(str(name))] = dict(arrays)
    found.groups = _groups(value["param_groups"], found)
    return found


def _groups(saved: Any, found: OptimizerState) -> Optional[List[Dict[str, Any]]]:
    """As torch has them. A folder of DCP may have all of them as one object, or dicts by number."""
    try:
        saved = value_of(saved)
        if isinstance(saved, dict):
            saved = [saved[key] for key in sorted(saved, key=lambda key: (len(str(key)), str(key)))]
        groups = []
        for group in saved:
            groups.append({key: value_of(one) if not isinstance(one, dict) else list(map(value_of, one.values()))
                           for key, one in group.items()})
        return groups or None
    except (Invalid, AttributeError, TypeError):
        found.unread += 1
        return None


def contents(tree: Tree) -> Contents:
    found = Contents()
    _walk(tree.root, (), found)
    return found


def take_flat(found: Contents, weights: Sequence[str]) -> List[str]:
    """Adds the optimizers whose keys are flat, beside `weights`, which are none of theirs. The keys that they took."""
    heads: Dict[str, OptimizerState] = {}
    mine, taken = set(weights), []

    def of(head: str) -> OptimizerState:
        return heads.setdefault(head, OptimizerState(head.rstrip(".") or "its keys"))

    for key, leaf in found.tensors.items():
        match = None if key in mine else _FLAT.match(key) or _BY_ARRAY.match(key)
        if match is not None:
            of(match["head"]).state.setdefault(match["name"], {})[match["what"]] = leaf
            taken.append(key)
    for key, leaf in found.objects.items():
        match = _OPTION.match(key)
        head = key[:-len("param_groups")] if key == "param_groups" or key.endswith(".param_groups") else None
        if head is not None and head in heads:
            heads[head].groups = _groups(leaf, heads[head])
            taken.append(key)
        elif match is not None:
            one = of(match["head"])
            taken.append(key)
            try:
                one.options.setdefault(match["name"], {})[match["what"]] = value_of(leaf)
            except Invalid:
                one.unread += 1
    for key in [key for key in found.tensors if key not in mine]:  # a tensor lr, of a capturable optimizer
        match = _OPTION.match(key)
        if match is not None:
            of(match["head"]).options.setdefault(match["name"], {})[match["what"]] = value_of(found.tensors[key])
            taken.append(key)
    found.optimizers += heads.values()
    return taken


# ---- the weights ----


@dataclass
class Weights:
    where: str  # for people
    prefix: str  # before the model's names
    at: Dict[str, Any]  # by the model's name, aliases and buffers too
    beside: Dict[str, str]  # what the same state dict has beyond them: by its name there, the key


def _suffixes(key: str) -> Iterator[Tuple[str, str]]:
    """(before, behind) at each dot."""
    yield "", key
    at = key.find(".")
    while at >= 0:
        yield key[:at + 1], key[at + 1:]
        at = key.find(".", at + 1)


def _is_of_optimizer(prefix: str) -> bool:
    words = prefix.rstrip(".").split(".")
    return any(a == "state" and b in _ARRAYS for a, b in zip(words, words[1:]))


def prefixes(keys: Sequence[str], wanted: Sequence[str]) -> "Counter[str]":
    """What stands before the wanted names, and before how many of them."""
    names, count = set(wanted), Counter()  # type: ignore[var-annotated]
    for key in keys:
        for before, behind in _suffixes(key):
            if behind in names:
                count[before] += 1
    return count


def _rank(prefix: str) -> int:
    words = [word for word in prefix.rstrip(".").split(".") if word]
    return 0 if all(word in _USUAL or word.isdigit() for word in words) else 1


def _choose(what: str, found: Contents, wanted: Sequence[str], only: Optional[str]) -> str:
    count = prefixes(list(found.tensors), wanted)
    fits = {prefix: n for prefix, n in count.items() if not _is_of_optimizer(prefix)
            and (only is None or prefix == only + "." or prefix.startswith(only + ".") or prefix == only)}
    if not fits:
        there = sorted(found.tensors)
        raise Mismatch(f"{what}: " + (f"in {only!r} there is " if only is not None else "it has ")
                       + f"no tensor by the name of any of the model's {len(wanted)}, such as {sorted(wanted)[0]}; "
                       f"there are {', '.join(there[:5]) or 'no tensors'}{', …' if len(there) > 5 else ''}")
    order = sorted(fits, key=lambda prefix: (-fits[prefix], _rank(prefix), len(prefix)))
    ties = [prefix for prefix in order if (fits[prefix], _rank(prefix)) == (fits[order[0]], _rank(order[0]))]
    if len(ties) > 1:
        names = [prefix.rstrip(".") for prefix in ties]
        raise Mismatch(f"{what} has the model's names in several places: {', '.join(names[:5])}; say which is taken: "
                       f"weights={names[0]!r}")
    return order[0]


def _container(path: Path, prefix: str) -> Path:
    """The dict that holds all of a model, of the path of one of its tensors."""
    for length in range(len(path) - 1, 0, -1):
        if (prefix).startswith(bare(dotted(path[:length]) + ".")):
            return path[:length]
    return ()


def find_weights(what: str, tree: Tree, found: Contents, wanted: Sequence[str], only: Optional[str]) -> Weights:
    """`wanted`: names of parameters, and buffers, and their second names."""
    prefix = _choose(what, found, wanted, only)
    at = {name: found.tensors[prefix + name] for name in wanted if prefix + name in found.tensors}
    container = _container(found.paths[prefix + next(iter(at))], prefix)
    taken = {prefix + name for name in at}
    root = prefix.split(".")[0] + "." if tree.is_flat and prefix else ""
    inside = bare(dotted(container) + ".") if container else ""
    beside = {}
    for key, path in found.paths.items():
        if path[:len(container)] == container and key not in taken and key.startswith(root):
            beside[key[len(prefix):] if key.startswith(prefix) else key[len(inside):]] = key
    return Weights(prefix.rstrip(".") or "the file", prefix, at, beside)


# ---- the optimizer ----


def find_optimizer(what: str, found: Contents, only: Optional[str]) -> Optional[OptimizerState]:
    there = [one for one in found.optimizers if only is None or one.where == only]
    if only is not None and not there:
        raise Mismatch(f"{what} has no optimizer's state in {only!r}; there "
                       + (f"is {', '.join(one.where for one in found.optimizers)}" if found.optimizers else "is none"))
    if len(there) > 1:
        raise Mismatch(f"{what} has {len(there)} states of optimizers, {', '.join(one.where for one in there[:5])}; "
                       f"say whose moments are taken: moments={there[0].where!r}")
    return there[0] if there else None


def run_step(found: Contents, tree: Tree) -> Tuple[Optional[int], str]:
    """How many steps the run has made, by what programs write beside an optimizer that does not count; where from."""
    manifest = tree.root.get("manifest") if isinstance(tree.root, dict) else None
    if isinstance(manifest, dict) and type(manifest.get("step")) is int:
        return manifest["step"], "manifest.json"
    for word in _STEPS:
        for key, value in found.objects.items():
            if key in (word, f"trainer_state.{word}") and type(value) is int and value >= 0:
                return value, key
    return None, ""
