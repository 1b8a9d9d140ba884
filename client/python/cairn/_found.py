"""What of a checkpoint's tree is the weights of a model, and what the state of its optimizer, whatever dicts a program
has put around them. Weights are found by the model's names: the place where most of them are. The state of an
optimizer is a dict with `state` and `param_groups`, wherever it stands, or the keys that torch makes of it when it is
flattened."""

from __future__ import annotations

import json
import os
import re
from collections import Counter, deque
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Callable, Deque, Dict, Iterator, List, Mapping, Optional, Sequence, Tuple, Union

from . import _stored
from ._stored import File, Room, Stored, opened
from .errors import Invalid, Mismatch, first_of
from .job import Job
from .memory import can_lend
from .operation import Operation, wait_all


# ==== a tree of values ====

# What a path holds, whoever wrote it, as one tree of dicts and lists with tensors, objects and numbers at its ends.
#
# A file of torch.save, a safetensors file, and folders: of torch's distributed checkpoint, of a snapshot of Cairn, and
# those in which programs (transformers, accelerate, torchtune, DeepSpeed's universal form) put several files; FOLDERS
# is the table of them. What the tree means is said further below.

JSON_BYTES = 64 << 20  # of a file of JSON that is read


@dataclass
class Tree:
    root: Any
    form: str  # for people
    is_flat: bool = False  # its keys are in one dict that may have been several
    files: List[File] = field(default_factory=list)
    blobs: Dict[str, Any] = field(default_factory=dict)  # of a snapshot of Cairn: bytes, by name

    def read(self, at: Sequence[Any], room: Room) -> List[Any]:
        """The values of tensors of it, on the host; in the room, or not."""
        values = [one.value() if isinstance(one, Stored) else one for one in at]
        for i, file in enumerate(self.files):
            values = file.read(values, room.part(i))
        return values

    def close(self) -> None:
        for file in self.files:
            file.close()


def is_tensor(value: Any) -> bool:
    import torch
    return isinstance(value, torch.Tensor) or (isinstance(value, Stored) and value.shape is not None)


# ---- files ----


def _torch_file(path: Path) -> Tree:
    file = opened(path)
    if not isinstance(file.saved, (dict, list, tuple)):
        raise Invalid(f"{path} holds a {type(file.saved).__name__}; a dict of tensors, or of state dicts, is read")
    return Tree(file.saved, "a file of torch.save", files=[file])


def _json(path: Path) -> Any:
    if path.stat().st_size > JSON_BYTES:
        raise Invalid(f"{path} is larger than {JSON_BYTES >> 20} MiB")
    try:
        return json.loads(path.read_text(encoding="utf-8"))
    except (ValueError, RecursionError):
        raise Invalid(f"{path} is no JSON") from None


# ---- folders ----


def _weights(folder: Path) -> Tuple[Any, List[File]]:
    """As transformers and others lay them: safetensors, else .bin or .pt files, whole or in several; None: none."""
    safe = sorted(folder.glob("*.safetensors"))
    if safe:
        return _stored.read_safetensors(safe), []
    found = sorted(path for path in folder.iterdir()
                   if re.fullmatch(r"(pytorch_model|model|hf_model|torchtune_model)([-_].*)?\.(bin|pt|pth)", path.name))
    if not found:
        return None, []
    files = [opened(path) for path in found]
    merged: Dict[Any, Any] = {}
    for file in files:
        if not isinstance(file.saved, dict):
            raise Invalid(f"{file._path} holds a {type(file.saved).__name__}; a state dict is read")
        merged.update(file.saved)
    return merged, files


def _program(folder: Path, optimizer: Path, steps: Optional[Path]) -> Tree:
    weights, files = _weights(folder)
    state = opened(optimizer)
    saved = state.saved
    tree = {"model": weights or {}, "optimizer": saved}
    if steps is not None:
        tree["trainer_state"] = _json(steps)
    return Tree(tree, f"weights and {optimizer.name} of a folder", files=[*files, state])


def _trainer(folder: Path) -> Tree:
    """transformers.Trainer's."""
    steps = folder / "trainer_state.json"
    return _program(folder, folder / "optimizer.pt", steps if steps.is_file() else None)


def _recipe(folder: Path) -> Tree:
    """torchtune's: the state of its recipe has the optimizer."""
    place = next(path for path in (folder / "recipe_state.pt", folder / "recipe_state" / "recipe_state.pt",
                                   folder.parent / "recipe_state" / "recipe_state.pt") if path.is_file())
    return _program(folder, place, None)


def _has_recipe(folder: Path) -> bool:
    return any(path.is_file() for path in (folder / "recipe_state.pt", folder / "recipe_state" / "recipe_state.pt",
                                           folder.parent / "recipe_state" / "recipe_state.pt"))


def _snapshot(folder: Path) -> Tree:
    """Of Cairn: the parts of each shard."""
    manifest = _json(folder / "manifest.json")
    if not isinstance(manifest, dict) or manifest.get("format") != "cairn snapshot":
        raise Invalid(f"{folder}/manifest.json is not that of a snapshot of Cairn")
    tree = _halves(folder)
    tree.form, tree.root["manifest"] = "a snapshot of Cairn", manifest
    tree.blobs = _stored.read_safetensors(sorted((folder / "blobs").glob("*.safetensors")))
    return tree


def _halves(folder: Path) -> Tree:
    """model/ and optim/ of safetensors, as `cairn snapshot export` writes them."""
    root = {part: _stored.read_safetensors(sorted((folder / part).glob("*.safetensors"))) for part in ("model", "optim")
            if (folder / part).is_dir()}
    return Tree(root, "safetensors of a model and its optimizer")


def _universal(folder: Path) -> Tree:
    """DeepSpeed's, by ds_to_universal: a folder a parameter, with a file for each of its arrays."""
    weights: Dict[str, Any] = {}
    state: Dict[str, Dict[str, Any]] = {}
    files: List[File] = []
    for one in sorted((folder / "zero").iterdir()):
        for path in sorted(one.glob("*.pt")):
            file = opened(path)
            files.append(file)
            value = file.saved.get("param") if isinstance(file.saved, dict) else file.saved
            if path.stem == "fp32":
                weights[one.name] = value
            else:
                state.setdefault(one.name, {})[path.stem] = value
    return Tree({"model": weights, "optimizer": {"state": state, "param_groups": []}}, "DeepSpeed's universal form",
                files=files)


def _dcp_folder(folder: Path) -> Tree:
    root, is_flat = _stored.read_dcp(folder)
    return Tree(root, "a folder of torch's distributed checkpoint", is_flat)


def _weights_alone(folder: Path) -> Tree:
    weights, files = _weights(folder)
    return Tree({"model": weights}, "weights of a folder", files=files)


FOLDERS: List[Tuple[Callable[[Path], bool], Callable[[Path], Tree]]] = [  # the first that it looks like
    (lambda at: (at / ".metadata").is_file(), _dcp_folder),
    (lambda at: (at / "manifest.json").is_file(), _snapshot),
    (lambda at: (at / "zero").is_dir(), _universal),
    (lambda at: (at / "optimizer.pt").is_file(), _trainer),
    (lambda at: (at / "optimizer.bin").is_file(), lambda at: _program(at, at / "optimizer.bin", None)),  # accelerate
    (lambda at: (at / "pytorch_model_fsdp_0" / ".metadata").is_file(), lambda at: _accelerated(at)),
    (_has_recipe, _recipe),
    (lambda at: any((at / "model").glob("*.safetensors")), _halves),
    (lambda at: any(at.glob("*.safetensors")) or any(at.glob("pytorch_model*.bin")), _weights_alone),
]


def _accelerated(folder: Path) -> Tree:
    """accelerate with FSDP: two folders of DCP beside each other."""
    model = _stored.read_dcp(folder / "pytorch_model_fsdp_0")[0]
    optimizer = folder / "optimizer_0"
    return Tree({"model": model, "optimizer": _stored.read_dcp(optimizer)[0] if optimizer.is_dir() else {}},
                "folders of torch's distributed checkpoint")


def read_tree(path: Union[str, "os.PathLike[str]"]) -> Tree:
    place = Path(path)
    if place.is_dir():
        for looks_so, reading in FOLDERS:
            if looks_so(place):
                return reading(place)
        inside = sorted(one.name for one in place.iterdir())[:5]
        raise Invalid(f"{place} has no .metadata, weights or manifest.json: it is no folder of torch's distributed "
                      "checkpoint, of a snapshot, or of a program that is known; in it are "
                      f"{', '.join(inside) or 'no files'}. Give the file or the folder with the weights, or both: "
                      "[weights, optimizer]")
    if not place.exists():
        raise Invalid(f"there is no {place}")
    if place.suffix == ".safetensors":
        return Tree({"model": _stored.read_safetensors([place])}, "a safetensors file")
    return _torch_file(place)


def read_all(paths: Sequence[Any]) -> Tree:
    """Several as one: the weights here, the optimizer there."""
    if len(paths) == 1:
        return read_tree(paths[0])
    trees: List[Tree] = []
    try:
        for path in paths:
            trees.append(read_tree(path))
    except BaseException:
        for tree in trees:
            tree.close()
        raise
    return Tree({Path(path).name: tree.root for path, tree in zip(paths, trees)},
                " and ".join(tree.form for tree in trees), files=[file for tree in trees for file in tree.files])


# ==== weights and states of optimizers ====

Keys = Tuple[Any, ...]

_WRAPPERS = ("_orig_mod.", "_fsdp_wrapped_module.", "_checkpoint_wrapped_module.")
_USUAL = {"model", "module", "state_dict", "model_state_dict", "app", "net", "network", "trainer", "weights"}
_ARRAYS = ("step exp_avg exp_avg_sq max_exp_avg_sq exp_inf mu_product momentum_buffer square_avg grad_avg acc_delta "
           "sum prev step_size eta mu ax row_var col_var variance fp32_param master_param main_param ema").split()
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
    paths: Dict[str, Keys] = field(default_factory=dict)
    objects: Dict[str, Any] = field(default_factory=dict)  # what is no tensor and no container
    optimizers: List[OptimizerState] = field(default_factory=list)


# ---- the walk ----


def _items(value: Any) -> Optional[Iterator[Tuple[Any, Any]]]:
    if isinstance(value, dict):
        return iter(value.items())
    return iter(enumerate(value)) if isinstance(value, (list, tuple)) and not isinstance(value, str) else None


def _walk(value: Any, path: Keys, into: Contents) -> None:
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


def _nested(value: Mapping[str, Any], path: Keys) -> OptimizerState:
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
                       f"there are {first_of(there) or 'no tensors'}")
    order = sorted(fits, key=lambda prefix: (-fits[prefix], _rank(prefix), len(prefix)))
    ties = [prefix for prefix in order if (fits[prefix], _rank(prefix)) == (fits[order[0]], _rank(order[0]))]
    if len(ties) > 1:
        names = [prefix.rstrip(".") for prefix in ties]
        raise Mismatch(f"{what} has the model's names in several places: {', '.join(names[:5])}; say which is taken: "
                       f"weights={names[0]!r}")
    return order[0]


def _container(path: Keys, prefix: str) -> Keys:
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


# ==== into a job ====

# What a checkpoint has, into a job that has no state yet, window by window: its parameters, buffers and moments are
# the initial state, which is there as a whole or not at all. The reader is ahead of what is being put by ROOMS - 1
# windows, and begins before the job is made.

WINDOW_BYTES = 64 << 20  # of f32; a tensor that is larger is a window of its own
ROOMS = 2

Item = Tuple[str, str, int]  # a tensor, its plane, bytes
Values = Dict[str, Dict[str, Any]]  # {plane: {tensor: its values}}


def windows_of(items: Sequence[Item]) -> List[List[Item]]:
    """In order; a tensor's planes may lie in two."""
    windows: List[List[Item]] = []
    room = 0
    for item in items:
        if not windows or item[2] > room:
            windows.append([])
            room = WINDOW_BYTES
        windows[-1].append(item)
        room -= item[2]
    return windows


class Pouring:
    """`read`: the values of a window's items, f32, in a room where they fit there. `names`: the tensors whose values
    come from here, whatever the model or the job's spec has of them."""

    def __init__(self, read: Callable[[Sequence[Item], Room], Values], items: Sequence[Item], timeout: float):
        self._read, self._timeout = read, timeout
        self.names = frozenset(name for name, plane, _ in items if plane == "param")
        self._waiting: Deque[Sequence[Item]] = deque(windows_of(items))
        self._coming: Deque[Tuple[Room, "Future[Values]"]] = deque()
        self._reader = ThreadPoolExecutor(1, "cairn-import")
        self.is_done = False  # this worker has put all of it

    def begin(self) -> None:
        """Reading."""
        for _ in range(ROOMS):
            self._begin(Room())

    def _begin(self, room: Room) -> None:
        if self._waiting:
            self._coming.append((room, self._reader.submit(self._read, self._waiting.popleft(), room)))

    def put(self, job: Job) -> None:
        """All of it, by rank 0: the initial state, as far as the job has tensors of these names."""
        while self._coming:
            room, coming = self._coming.popleft()
            _put(job, coming.result(), self._timeout)
            del coming
            self._begin(room)
        self.is_done = True

    def close(self) -> None:
        """The reader ends behind what it reads now."""
        self._waiting.clear()
        for _, coming in self._coming:
            coming.cancel()
        self._reader.shutdown()


def _put(job: Job, window: Values, timeout: float) -> None:
    """As far as the job has these tensors. Behind it nothing of the window is on loan."""
    begun: List[Operation] = []
    try:
        for plane, values in window.items():
            for name, value in values.items():
                if name in job._tensors:
                    begun.append(job.putting(name, value if can_lend(value) else value.contiguous(), plane))
    finally:
        wait_all(begun, timeout)
