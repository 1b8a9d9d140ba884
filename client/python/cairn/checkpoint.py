"""A run that began elsewhere goes on in Cairn with its moments: checkpoints of torch.

    m = cairn.import_checkpoint(session, "ckpt/step-1000", model, cairn.AdamW(lr=3e-4), name="gpt")

Read are a DCP folder (FSDP2's, with its optimizer) and a file of torch.save; of either only data, no code: see
_metadata.py, and torch.load(weights_only=True). Parameters and moments go window by window, and the next ones are read
meanwhile (_pouring.py), so a worker has ROOMS windows of it in memory, not all. Before torch 2.1 it has all of a file.
"""

from __future__ import annotations

import contextlib
import functools
import io
import json
import os
import subprocess
import sys
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Callable, Dict, Iterator, List, Mapping, Optional, Sequence, Tuple, Union

from . import _log, _stored
from ._call import TIMEOUT_S
from ._pouring import Item, Pouring, Values
from ._stored import Room
from ._wrapped import own_name
from .errors import Invalid, Mismatch

NAMES_SHOWN = 20
MOMENTS = {"exp_avg": "exp_avg", "exp_avg_sq": "exp_avg_sq", "momentum_buffer": "exp_avg"}  # torch's name: the plane
METADATA_S = 180  # that reading .metadata may take


@dataclass
class Found:
    """What a checkpoint has of one run. `read`: the tensors that are there, on the host; in the room, or not."""

    shapes: Dict[str, Tuple[int, ...]] = field(default_factory=dict)  # of parameters
    params: Dict[str, Any] = field(default_factory=dict)  # a parameter's name: where it is
    moments: Dict[Tuple[str, str], Any] = field(default_factory=dict)  # (name, plane): where it is
    steps: Dict[str, int] = field(default_factory=dict)
    hyper: Dict[str, Dict[str, Any]] = field(default_factory=dict)  # of a parameter
    read: Callable[[Sequence[Any], Room], List[Any]] = lambda at, _: list(at)
    close: Callable[[], None] = lambda: None


def _torch():
    import torch
    return torch


def _load(source: Any, **how: Any) -> Any:
    """weights_only: tensors and plain containers; a file with anything else in it is refused."""
    import pickle
    torch = _torch()
    try:
        return torch.load(source, map_location="cpu", weights_only=True, **how)
    except (pickle.UnpicklingError, RuntimeError, ValueError, EOFError) as why:
        what = source if isinstance(source, (str, Path)) else "an item of the checkpoint"
        raise Invalid(f"{what} is not taken: {str(why).splitlines()[0][:300]}. Only tensors and plain containers are "
                      "read, no code is run for what else it has") from None


# ---- a DCP folder ----


def _catalog(folder: Path) -> Dict[str, Any]:
    program = Path(__file__).with_name("_metadata.py")
    try:
        ran = subprocess.run([sys.executable, "-I", str(program), str(folder / ".metadata")], capture_output=True,
                             timeout=METADATA_S, stdin=subprocess.DEVNULL, text=True, errors="replace")
    except subprocess.TimeoutExpired:
        raise Invalid(f"{folder}/.metadata: reading it took more than {METADATA_S} s") from None
    if ran.returncode < 0:
        raise Invalid(f"{folder}/.metadata: reading it was ended by signal {-ran.returncode}: it takes more time or "
                      "memory than any such file needs")
    if ran.returncode != 0:
        said = ran.stderr.strip().splitlines()
        raise Invalid(f"{folder}/.metadata: {said[-1] if said else f'reading it ended with {ran.returncode}'}")
    return json.loads(ran.stdout)


class _Item(io.RawIOBase):
    """A part of a file as a file of its own: torch reads from it into the tensor's memory."""

    _fd = -1

    def __init__(self, path: Path, at: int, count: int):
        self._fd = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC)
        self._at, self._count, self._next = at, count, 0
        if os.fstat(self._fd).st_size < at + count:
            self.close()
            raise Invalid(f"{path} ends before byte {at + count}: it is cut off")
        os.posix_fadvise(self._fd, at, count, os.POSIX_FADV_WILLNEED)

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def seek(self, offset: int, whence: int = io.SEEK_SET) -> int:
        self._next = max(0, offset + {io.SEEK_SET: 0, io.SEEK_CUR: self._next, io.SEEK_END: self._count}[whence])
        return self._next

    def readinto(self, into: Any) -> int:
        left = max(0, self._count - self._next)
        got = os.preadv(self._fd, [memoryview(into).cast("B")[:left]], self._at + self._next)
        self._next += got
        return got

    def close(self) -> None:
        if self._fd >= 0 and not self.closed:
            os.close(self._fd)
        super().close()


class _Dcp:
    def __init__(self, folder: Path):
        self._folder, self._catalog = folder, _catalog(folder)

    def keys(self) -> Iterator[str]:
        return iter(self._catalog)

    def shape(self, key: str) -> Optional[Tuple[int, ...]]:
        shape = self._catalog[key].get("shape")
        return None if shape is None else tuple(shape)

    def _item(self, chunk: Mapping[str, Any]) -> Any:
        path = self._folder / chunk["file"]
        try:
            with io.BufferedReader(_Item(path, chunk["at"], chunk["bytes"])) as item:
                return _load(item)
        except OSError as why:
            raise Invalid(f"{path} cannot be read: {why.strerror}; .metadata says that a tensor lies there") from None

    def value(self, key: str) -> Any:
        """Whole: its chunks must cover it exactly."""
        entry, torch = self._catalog[key], _torch()
        if "shape" not in entry:
            return self._item(entry["chunks"][0])
        if len(entry["chunks"]) == 1 and entry["chunks"][0]["sizes"] == entry["shape"]:
            return self._whole(key, entry)
        try:
            whole, elems = torch.empty(entry["shape"], dtype=torch.float32), 0
        except (RuntimeError, MemoryError):
            raise Invalid(f"{key}: .metadata says that it is {entry['shape']}; there is no memory for that") from None
        for chunk in entry["chunks"]:
            part = self._item(chunk)
            if list(part.shape) != chunk["sizes"]:
                raise Invalid(f"{key}: a chunk is of {list(part.shape)}, .metadata says {chunk['sizes']}")
            place = tuple(slice(o, o + s) for o, s in zip(chunk["offsets"], chunk["sizes"]))
            if tuple(whole[place].shape) != tuple(chunk["sizes"]):
                raise Invalid(f"{key}: a chunk at {chunk['offsets']} lies outside of {entry['shape']}")
            whole[place] = part
            elems += part.numel()
        if elems != whole.numel():
            raise Invalid(f"{key}: its chunks have {elems} elements, it has {whole.numel()}")
        return whole

    def _whole(self, key: str, entry: Mapping[str, Any]) -> Any:
        part = self._item(entry["chunks"][0])
        if list(part.shape) != entry["shape"]:
            raise Invalid(f"{key}: a chunk is of {list(part.shape)}, .metadata says {entry['shape']}")
        if any(entry["chunks"][0]["offsets"]):
            raise Invalid(f"{key}: a chunk at {entry['chunks'][0]['offsets']} lies outside of {entry['shape']}")
        return part


def _of_dcp(folder: Path) -> Found:
    dcp, found, unread = _Dcp(folder), Found(), 0
    found.read = lambda at, _: [dcp.value(key) for key in at]
    for key in dcp.keys():
        head, _, rest = key.partition("state.") if ".state." in f".{key}" else (key, "", "")
        name, _, what = rest.rpartition(".")
        if rest and what == "step":
            found.steps[_bare(name)] = int(float(dcp.value(key)))
        elif rest and what in MOMENTS:
            found.moments[_bare(name), MOMENTS[what]] = key
        elif "param_groups." in key:
            name, _, what = key.partition("param_groups.")[2].rpartition(".")
            if dcp.shape(key) is None:
                unread += not _take_hyper(found.hyper.setdefault(_bare(name), {}), what, dcp, key)
        elif dcp.shape(key) is not None and not rest:
            found.params[_bare(key)] = key
            found.shapes[_bare(key)] = dcp.shape(key) or ()
    if unread > 0:
        _log.unread(str(folder), unread)
    return found


def _take_hyper(hyper: Dict[str, Any], what: str, dcp: _Dcp, key: str) -> bool:
    """They are compared with the job's, no more: one that this torch does not read as data is left out."""
    try:
        hyper[what] = dcp.value(key)
    except Invalid:
        return False
    return True


_PREFIXES = ("app.", "model.", "module.", "state.model.", "net.")


def _bare(name: str) -> str:
    """Without what wraps a model or a program puts before a name."""
    for word in ("_orig_mod.", "_fsdp_wrapped_module.", "_checkpoint_wrapped_module."):
        name = name.replace(word, "")
    return name


# ---- a file of torch.save ----


def _is_state(value: Any) -> bool:
    return isinstance(value, dict) and "state" in value and "param_groups" in value


def _model_of(saved: Mapping[str, Any]) -> Mapping[str, Any]:
    torch = _torch()
    for key in ("model", "model_state_dict", "state_dict", "module"):
        if isinstance(saved.get(key), dict):
            return saved[key]
    return {key: value for key, value in saved.items() if isinstance(value, torch.Tensor)}


def _of_file(path: Path, names: Optional[Sequence[str]]) -> Found:
    saved, found, torch = _load(str(path), **{"mmap": True} if _stored.can_map(path) else {}), Found(), _torch()
    if not isinstance(saved, dict):
        raise Invalid(f"{path} holds a {type(saved).__name__}; a dict of tensors, or of state dicts, is read")
    for key, value in _model_of(saved).items():
        if isinstance(value, torch.Tensor):
            found.params[_bare(key)] = value
            found.shapes[_bare(key)] = tuple(value.shape)
    states = [value for value in saved.values() if _is_state(value)]
    if len(states) > 1:
        raise Invalid(f"{path} has {len(states)} states of optimizers; one is taken")
    for state in states:
        _take_optimizer(found, path, state, names)
    file = _stored.File(path)
    found.read, found.close = file.read, file.close
    return found


def _take_optimizer(found: Found, path: Path, optimizer: Mapping[str, Any], names: Optional[Sequence[str]]) -> None:
    for group in optimizer["param_groups"]:
        for number in group["params"]:
            if isinstance(number, str):
                name = _bare(number)
            elif names is None:
                raise Invalid(f"{path}: the optimizer's state is numbered, not named: say names=[…], the parameters' "
                              "names in the order in which the optimizer was given them")
            elif number >= len(names):
                raise Invalid(f"{path}: the optimizer has a parameter {number}, and names=[…] are {len(names)}")
            else:
                name = _bare(names[number])
            found.hyper[name] = {key: value for key, value in group.items() if key != "params"}
            for what, value in optimizer["state"].get(number, {}).items():
                if what == "step":
                    found.steps[name] = int(float(value))
                elif what in MOMENTS and value is not None:
                    found.moments[name, MOMENTS[what]] = value


def _open(path: Path, names: Optional[Sequence[str]]) -> Found:
    if path.is_dir():
        if not (path / ".metadata").is_file():
            raise Invalid(f"{path} has no .metadata: it is no folder of torch's distributed checkpoint. One of "
                          "safetensors is read by attach(init_from=…), a snapshot by `cairn snapshot restore --path`")
        return _of_dcp(path)
    if not path.is_file():
        raise Invalid(f"there is no {path}")
    return _of_file(path, names)


# ---- against the model ----


def _align(found: Found, wanted: Mapping[str, Tuple[int, ...]]) -> None:
    """Programs put a word before all names ("model."): it goes, if the names fit without it."""
    if set(wanted) <= set(found.params):
        return
    for prefix in _PREFIXES:
        if not any(prefix + name in found.params for name in wanted):
            continue
        cut = lambda name: name[len(prefix):] if name.startswith(prefix) else name  # noqa: E731
        found.params = {cut(name): at for name, at in found.params.items()}
        found.shapes = {cut(name): shape for name, shape in found.shapes.items()}
        found.moments = {(cut(name), plane): at for (name, plane), at in found.moments.items()}
        found.steps = {cut(name): step for name, step in found.steps.items()}
        found.hyper = {cut(name): hyper for name, hyper in found.hyper.items()}
        return


def _listed(what: str, names: Sequence[str]) -> str:
    more = f" and {len(names) - NAMES_SHOWN} more" if len(names) > NAMES_SHOWN else ""
    return f"{what}: {', '.join(sorted(names)[:NAMES_SHOWN])}{more}"


def _judge(path: Path, found: Found, wanted: Mapping[str, Tuple[int, ...]], planes: Mapping[str, Sequence[str]],
           allow_missing: Sequence[str], allow_extra: Sequence[str]) -> int:
    """The step. Mismatch lists all that does not fit."""
    wrong: List[str] = []
    missing = [name for name in wanted if name not in found.params and name not in allow_missing]
    extra = [name for name in found.params if name not in wanted and name not in allow_extra]
    shapes = [f"{name} is {list(found.shapes[name])} there and {list(shape)} here" for name, shape in wanted.items()
              if name in found.shapes and found.shapes[name] != tuple(shape)]
    moments = [f"{name} ({plane})" for name in planes for plane in planes[name]
               if (name, plane) not in found.moments and name not in allow_missing]
    wrong += [_listed("it lacks", missing)] * bool(missing) + [_listed("it has more", extra)] * bool(extra)
    wrong += [_listed("other shapes", shapes)] * bool(shapes)
    wrong += [_listed("no moments of", moments)] * bool(moments)
    steps = {step for name, step in found.steps.items() if name in wanted}
    if len(steps) > 1:
        wrong.append(f"parameters are at different steps, {min(steps)} to {max(steps)}: a job has one")
    if wrong:
        raise Mismatch(f"{path}: " + "; ".join(wrong) + ". Name what may be left out: allow_missing=[…], "
                       "allow_extra=[…]")
    return steps.pop() if steps else 0


_HYPER = {"lr": "lr", "eps": "eps", "weight_decay": "weight_decay", "momentum": "momentum", "nesterov": "nesterov"}


def _numbers(hyper: Mapping[str, Any]) -> Dict[str, float]:
    """By our names; what is no number is another optimizer's, and not compared."""
    theirs = {ours: hyper[key] for key, ours in _HYPER.items() if key in hyper}
    betas = hyper.get("betas")
    if isinstance(betas, (list, tuple)) and len(betas) == 2:
        theirs["beta1"], theirs["beta2"] = betas
    numbers: Dict[str, float] = {}
    for key, value in theirs.items():
        with contextlib.suppress(TypeError, ValueError, RuntimeError):
            numbers[key] = float(value)
    return numbers


def _say_differences(name: str, found: Found, group_of: Mapping[str, Any]) -> None:
    """Of hyper-parameters: the job's count."""
    seen = set()
    for tensor, hyper in found.hyper.items():
        group = group_of.get(tensor)
        if group is None:
            continue
        for key, value in _numbers(hyper).items():
            mine = getattr(group, key, None)
            if mine is not None and float(mine) != value and (group.name, key) not in seen:
                seen.add((group.name, key))
                _log.waits(name, f"group {group.name} has {key} {mine}, the checkpoint {value:g}: the job's "
                           "counts")


# ---- into the job ----


def _read(found: Found, shapes: Mapping[str, Tuple[int, ...]], items: Sequence[Item], room: Room) -> Values:
    torch = _torch()
    at = [found.params[name] if plane == "param" else found.moments[name, plane] for name, plane, _ in items]
    values: Values = {}
    for (name, plane, _), value in zip(items, found.read(at, room)):
        if tuple(value.shape) != tuple(shapes[name]):
            raise Mismatch(f"{name} ({plane}) is {list(value.shape)} there and {list(shapes[name])} here")
        values.setdefault(plane, {})[name] = value.detach().to(torch.float32)
    return values


def import_checkpoint(session: Any, path: Union[str, "os.PathLike[str]"], model: Any, optim: Any, *,
                      names: Optional[Sequence[str]] = None, allow_missing: Sequence[str] = (),
                      allow_extra: Sequence[str] = (), **options: Any) -> Any:
    """Attaches a model as Session.attach does, to a job that goes on where a checkpoint of torch ends: with its
    parameters, the optimizer's moments and the step. Every worker calls it; rank 0 reads `path`, the others wait.
    Called again, with a job that has its state, it attaches only; interrupted, and called again, it begins anew.

    path           a DCP folder, or a file of torch.save: {"model": …, "optimizer": …}, or a state dict. Read as data:
                   Invalid if there is code in it
    names          of parameters, in the optimizer's order, where its state is numbered
    allow_missing  tensors that it need not have, or no moments of: they are as the model has them, moments 0
    allow_extra    tensors that it may have beyond the model's
    options        of attach; of `init` what the checkpoint does not have, so who attaches later gives no more of it

    Mismatch lists what is missing, what is there beyond, other shapes, and parameters at different steps. Learning
    rates and other numbers are those of `optim`; where the checkpoint has others, the log says so."""
    if options.get("init_from") is not None:
        raise Invalid("init_from and a checkpoint are two initial states: give one")
    place = Path(path)
    with contextlib.ExitStack() as ends:
        found = _open(place, names)
        ends.callback(found.close)
        parameters = {own_name(name): tuple(p.shape) for name, p in model.named_parameters()}
        buffers = {own_name(name): tuple(b.shape) for name, b in model.named_buffers()}
        _align(found, parameters)
        kept = {**parameters, **{name: shape for name, shape in buffers.items() if name in found.params}}
        kinds = ["exp_avg"] + ["exp_avg_sq"] * any(plane == "exp_avg_sq" for _, plane in found.moments)
        planes = {own_name(name): kinds for name, p in model.named_parameters() if p.requires_grad and found.moments}
        step = _judge(place, found, kept, planes, tuple(allow_missing), tuple(allow_extra))
        pouring = Pouring(functools.partial(_read, found, kept), _items(found, kept, planes),
                          options.get("timeout", TIMEOUT_S))
        ends.callback(pouring.close)
        m = session.attach(model, optim, first_step=step, _initial=pouring, **options)
    if pouring.is_done:
        group_of = {t.name: g for t in m._spec.tensors for g in m._spec.groups if t.group in (g.name, None)}
        _say_differences(m.name, found, group_of)
    return m


def _items(found: Found, shapes: Mapping[str, Tuple[int, ...]], planes: Mapping[str, Sequence[str]]) -> List[Item]:
    """A tensor after the other: parameters are hashed while moments are read."""
    of = [(name, plane) for name in shapes if name in found.params
          for plane in ("param", *planes.get(name, ())) if plane == "param" or (name, plane) in found.moments]
    return [(name, plane, 4 * _elems(shapes[name])) for name, plane in of]


def _elems(shape: Sequence[int]) -> int:
    elems = 1
    for dim in shape:
        elems *= dim
    return elems
