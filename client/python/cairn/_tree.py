"""What a path holds, whoever wrote it, as one tree of dicts and lists with tensors, objects and numbers at its ends.

A file of torch.save, a safetensors file, and folders: of torch's distributed checkpoint, of a snapshot of Cairn, and
those in which programs (transformers, accelerate, torchtune, DeepSpeed's universal form) put several files; FOLDERS is
the table of them. What the tree means is said by _found.py."""

from __future__ import annotations

import json
import os
import re
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Callable, Dict, List, Optional, Sequence, Tuple, Union

from . import _dcp, _safetensors
from ._stored import File, Room, Stored, opened
from .errors import Invalid

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
        return _safetensors.read(safe), []
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
    tree.blobs = _safetensors.read(sorted((folder / "blobs").glob("*.safetensors")))
    return tree


def _halves(folder: Path) -> Tree:
    """model/ and optim/ of safetensors, as `cairn snapshot export` writes them."""
    root = {part: _safetensors.read(sorted((folder / part).glob("*.safetensors"))) for part in ("model", "optim")
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
    root, is_flat = _dcp.read(folder)
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
    model = _dcp.read(folder / "pytorch_model_fsdp_0")[0]
    optimizer = folder / "optimizer_0"
    return Tree({"model": model, "optimizer": _dcp.read(optimizer)[0] if optimizer.is_dir() else {}},
                "folders of torch's distributed checkpoint")


def read(path: Union[str, "os.PathLike[str]"]) -> Tree:
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
        return Tree({"model": _safetensors.read([place])}, "a safetensors file")
    return _torch_file(place)


def read_all(paths: Sequence[Any]) -> Tree:
    """Several as one: the weights here, the optimizer there."""
    if len(paths) == 1:
        return read(paths[0])
    trees: List[Tree] = []
    try:
        for path in paths:
            trees.append(read(path))
    except BaseException:
        for tree in trees:
            tree.close()
        raise
    return Tree({Path(path).name: tree.root for path, tree in zip(paths, trees)},
                " and ".join(tree.form for tree in trees), files=[file for tree in trees for file in tree.files])
