"""A run that began elsewhere goes on in Cairn with its moments: checkpoints of torch, and of Cairn.

    m = cairn.import_checkpoint(session, "ckpt/step-1000", model, cairn.AdamW(lr=3e-4), name="gpt")

_found.py reads what lies there, as data, and finds weights and an optimizer's state in it; _rules.py says whether that
optimizer is the job's. Here they are held against the model: what is taken is justified, told in one line, and poured
window by window (_found.py), so a worker has ROOMS windows of it in memory, not all. Before torch 2.1 it has all of a
file.
"""

from __future__ import annotations

import contextlib
import functools
import math
import os
from dataclasses import dataclass, field
from fnmatch import fnmatchcase
from typing import Any, Dict, List, Mapping, Optional, Sequence, Tuple, Union

from . import _found, _log, _rules
from ._call import TIMEOUT_S
from ._found import Item, Pouring, Values
from ._model import own_name
from ._stored import Room, product
from .errors import Invalid, Mismatch, some_of
from .optim import why_no_moment
from .spec import Group

NAMES_SHOWN = 20
STEP_MAX = 1 << 48
_FLOATS = ("float32", "float64", "bfloat16", "float16", "float8_e4m3fn", "float8_e4m3fnuz", "float8_e5m2",
           "float8_e5m2fnuz")
_KNOWN = frozenset(("trainer_state", "manifest"))  # of a tree: read, or of no use to a job

Source = Union[str, "os.PathLike[str]"]


@dataclass(frozen=True)
class Imported:
    """What an import took, in `text` and by itself. In the attached model as `imported`; None there: the job had its
    state."""

    path: str
    form: str  # "a file of torch.save", ...
    parameters: int
    buffers: int
    moments: Dict[str, int]  # by torch's name of the array: of how many tensors
    step: int
    step_from: str
    left: Tuple[str, ...]  # what lies there and was not taken; without moments, or as the model has it
    text: str


@dataclass
class _Wanted:
    """A model's side of it."""

    shapes: Dict[str, Tuple[int, ...]] = field(default_factory=dict)  # of parameters and buffers
    aliases: Dict[str, List[str]] = field(default_factory=dict)  # the second names of what is tied
    buffers: Dict[str, Any] = field(default_factory=dict)
    kept: Dict[str, Any] = field(default_factory=dict)  # integers and the like, which stay this worker's own
    must: List[str] = field(default_factory=list)  # what a state dict has of them
    group_of: Dict[str, Group] = field(default_factory=dict)  # of what is trained
    by_id: Dict[int, str] = field(default_factory=dict)

    def all_names(self) -> Dict[str, str]:
        """Every name that a checkpoint may have: ours. Without what wraps modules."""
        found = {_found.bare(name): name for name in self.shapes}
        found.update({_found.bare(alias): name for name, aliases in self.aliases.items() for alias in aliases})
        return found


@dataclass
class _Taken:
    """What is to be poured."""

    params: Dict[str, Any] = field(default_factory=dict)  # where each is
    moments: Dict[Tuple[str, str], Any] = field(default_factory=dict)  # (name, plane): where
    arrays: Dict[str, int] = field(default_factory=dict)
    steps: Dict[str, int] = field(default_factory=dict)
    missed: Dict[str, int] = field(default_factory=dict)  # of the step's, by parameters with another count
    step: int = 0
    step_from: str = ""
    left: List[str] = field(default_factory=list)
    differences: List[str] = field(default_factory=list)  # of learning rates and the like: the job's count
    wrong: Dict[str, List[str]] = field(default_factory=dict)


def _wanted(model: Any, optim: Any, wire: Any) -> _Wanted:
    from ._model import _WIRES as wires
    from ._model import slots_of
    from ._blobs import own
    from .torch import _groups
    found, slots = _Wanted(), slots_of(model, wire)
    for slot in slots:
        found.shapes[slot.name], found.aliases[slot.name] = tuple(slot.parameter.shape), slot.aliases
        found.by_id[id(slot.parameter)] = slot.name
    groups, group_of = _groups(optim, slots)
    by_name = {group.name: group for group in groups}
    found.group_of = {slot.name: by_name[group_of[slot.name]] for slot in slots if slot.trained}
    persistent = {own_name(name) for name in model.state_dict(keep_vars=True)}
    for name, parameter in own(model):
        found.shapes[name], found.kept[name] = tuple(parameter.shape), parameter
    for name, buffer in model.named_buffers():
        name = own_name(name)
        found.shapes[name], found.buffers[name] = tuple(buffer.shape), buffer
        if buffer.dtype not in wires:
            found.kept[name] = buffer
    found.must = [name for name in found.shapes if name not in found.buffers or name in persistent]
    return found


# ---- against the model ----


def _is_allowed(name: str, patterns: Sequence[str]) -> bool:
    return any(name == pattern or fnmatchcase(name, pattern) for pattern in patterns)


def _dtype(leaf: Any) -> str:
    return str(leaf.dtype).replace("torch.", "")


def _take_weights(what: str, tree: _found.Tree, found: _found.Contents, wanted: _Wanted, only: Optional[str],
                  taken: _Taken) -> _found.Weights:
    ours = wanted.all_names()
    weights = _found.find_weights(what, tree, found, list(ours), only)
    for name, leaf in weights.at.items():
        mine, there = ours[name], taken.params.get(ours[name])
        if there is None:
            taken.params[mine] = leaf
        elif tuple(there.shape) != tuple(leaf.shape) or not _same(tree, there, leaf):
            taken.wrong.setdefault("tied here, and with other values there", []).append(f"{mine} and {name}")
    for name, buffer in wanted.kept.items():
        if name not in taken.params and name in tree.blobs and not buffer.is_meta:
            from . import _buffers
            value = _buffers.from_bytes(_found.value_of(tree.blobs[name]), buffer)
            taken.params.update({name: value} if value is not None else {})
    for name, leaf in taken.params.items():
        allowed = _FLOATS if name not in wanted.kept else (_dtype(wanted.kept[name]),)
        if tuple(leaf.shape) != wanted.shapes[name]:
            taken.wrong.setdefault("other shapes", []).append(
                f"{name} is {list(leaf.shape)} there and {list(wanted.shapes[name])} here")
        elif _dtype(leaf) not in allowed:
            taken.wrong.setdefault("no floating-point numbers" if allowed is _FLOATS else "another dtype", []).append(
                f"{name} is {_dtype(leaf)}")
    return weights


def _same(tree: _found.Tree, a: Any, b: Any) -> bool:
    import torch
    if isinstance(a, torch.Tensor) and isinstance(b, torch.Tensor) and a.data_ptr() == b.data_ptr():
        return True
    return bool(torch.equal(_found.value_of(a), _found.value_of(b)))


def _by_names(what: str, state: _found.OptimizerState, wanted: _Wanted, optim: Any, names: Optional[Sequence[str]],
              prefix: str) -> _rules.Source:
    """The optimizer's state by the job's names."""
    ours = wanted.all_names()
    keys = list(state.state) + [str(name) for group in state.groups or () for name in group.get("params", ())]
    counts = _found.prefixes(list(dict.fromkeys(keys + list(state.options))), list(ours))
    before = min(counts, key=lambda word: (-counts[word], len(word))) if counts else prefix

    def clean(name: str) -> str:
        name = _found.bare(own_name(name))
        for word in (before, prefix):
            if name.startswith(word) and name[len(word):] in ours:
                return ours[name[len(word):]]
        return ours.get(name, name)

    name_of = {key: clean(key) for key in [*keys, *state.options]}
    if state.is_numbered and not all(name_of[key] in wanted.shapes for key in keys):
        name_of = _rules.numbered(f"{what} ({state.where})", state.groups, optim, wanted.by_id, names, clean)
    elif names is not None and state.groups is not None:
        told = [clean(str(name)) for group in state.groups for name in group["params"]]
        _rules._differ(f"{what} ({state.where})", "names=[…]", [clean(name) for name in names], told)
    options = {name_of[key]: one for key, one in state.options.items()}
    for group in state.groups or ():
        alike = {key: value for key, value in group.items() if key not in ("params", "param_names")}
        options.update({name_of.get(str(number), str(number)): alike for number in group.get("params", ())})
    found: Dict[str, Dict[str, Any]] = {}
    for key, arrays in state.state.items():
        found.setdefault(name_of.get(key, key), {}).update(arrays)
    return _rules.Source(state.where, found, options, state.unread)


def _count(what: str, name: str, value: Any) -> int:
    try:
        step = float(_found.value_of(value))
    except (TypeError, ValueError, RuntimeError):
        step = math.nan
    if not (step == step and 0 <= step <= STEP_MAX and step == int(step)):
        raise Invalid(f"{what}: the step of {name} is {step:g}: it is no count of steps")
    return int(step)


def _take_moments(what: str, source: _rules.Source, wanted: _Wanted, allow_missing: Sequence[str],
                  taken: _Taken) -> None:
    beside: Dict[str, int] = {}  # arrays that are no moments of the job's optimizer
    for name, group in wanted.group_of.items():
        arrays = source.state.get(name, {})
        planes = dict(_rules.KEPT[group.optimizer]) if group.optimizer != "sgd" or group.momentum else {}
        if group.ema and _found.is_tensor(arrays.get("ema")):
            planes["ema"] = "ema"  # a snapshot of Cairn has it; without one it begins with the parameters
        there = {array: arrays[array] for array in planes if _found.is_tensor(arrays.get(array))}
        for array in arrays:
            if array != "step" and array not in planes and _found.is_tensor(arrays[array]):
                beside[array] = beside.get(array, 0) + 1
        if len(there) < len(planes):
            if not _is_allowed(name, allow_missing):
                taken.wrong.setdefault("no moments of", []).append(
                    f"{name} ({', '.join(array for array in planes if array not in there)})")
            else:
                taken.left.append(f"{name} begins without moments")
            continue
        for array, leaf in there.items():
            if tuple(leaf.shape) != wanted.shapes[name] or _dtype(leaf) not in _FLOATS:
                taken.wrong.setdefault("other moments", []).append(
                    f"{array} of {name} is {list(leaf.shape)} of {_dtype(leaf)} there, and "
                    f"{list(wanted.shapes[name])} here")
            taken.moments[name, planes[array]] = leaf
            taken.arrays[array] = taken.arrays.get(array, 0) + 1
        step = arrays.get("step", source.options.get(name, {}).get("step"))
        if step is not None:
            taken.steps[name] = _count(what, name, step)
    taken.left += [f"{array} of {count}, for which the job's optimizer has no use" for array, count in beside.items()]


def _take_step(what: str, tree: _found.Tree, found: _found.Contents, first_step: Optional[int], with_moments: bool,
               taken: _Taken) -> None:
    told, where = _found.run_step(found, tree)
    own = max(taken.steps.values(), default=None)
    if own is not None and where == "manifest.json":
        own = told
    if own is not None:
        taken.step, taken.step_from = own, "of the optimizer's state"
    elif first_step is not None:
        taken.step, taken.step_from = first_step, "as first_step says"
    elif told is not None and with_moments:
        taken.step, taken.step_from = told, f"of {where}"
    else:
        taken.step, taken.step_from = 0, "since no step is given"
    if first_step is not None and first_step != taken.step:
        raise Mismatch(f"{what}: first_step={first_step}, and its optimizer has made {taken.step} steps, by which its "
                       "moments are corrected: leave first_step out, or take the weights alone, moments=False")
    if taken.moments and taken.step == 0 and own is None and told is None:
        counts = "torch's SGD counts none" if set(taken.arrays) == {"momentum_buffer"} else (
            "the state of each parameter has a 'step' where torch wrote it")
        raise Mismatch(f"{what}: it has moments, and nothing in it says how many steps its run has made ({counts}); a "
                       "job at step 0 has no moments yet, and would throw them away. Say it: "
                       "first_step=N, 1 or more, by which a schedule goes, or take the weights alone: moments=False")


def _take_missed(wanted: _Wanted, taken: _Taken) -> None:
    """Each parameter goes on by its own count, as in torch: one without moments begins, whatever the job's step is."""
    having = {name for name, _ in taken.moments}
    for name, group in wanted.group_of.items():
        if group.optimizer == "sgd" and not group.momentum:
            continue  # nothing of its update goes by a count
        count = taken.steps.get(name, taken.step if name in having else 0)
        if count < taken.step:
            taken.missed[name] = taken.step - count
    behind = [name for name in taken.missed if name in having]
    if behind:
        taken.step_from += _listed(", with fewer updates of", behind).replace(":", "")


def _listed(what: str, names: Sequence[str]) -> str:
    return f"{what}: {some_of(sorted(names), NAMES_SHOWN)}"


def _refuse(what: str, wrong: Mapping[str, Sequence[str]]) -> None:
    if not wrong:
        return
    advice = []
    if {"it lacks", "it has more", "no moments of"} & set(wrong):
        advice.append("Name what may be left out, by names or patterns: allow_missing=[…], allow_extra=[…]")
    if {"no moments of", "other moments"} & set(wrong):
        advice.append("The weights alone are taken with moments=False")
    if any(len(names) > NAMES_SHOWN for names in wrong.values()):
        advice.append("All names are in this exception's .lists")
    error = Mismatch(f"{what}: " + "; ".join(_listed(word, names) for word, names in wrong.items())
                     + "".join(f". {sentence}" for sentence in advice))
    error.lists = {word: sorted(names) for word, names in wrong.items()}  # type: ignore[attr-defined]
    raise error


def _judge_names(wanted: _Wanted, weights: _found.Weights, allow_missing: Sequence[str], allow_extra: Sequence[str],
                 optimizers_keys: Sequence[str], taken: _Taken) -> None:
    missing = [name for name in wanted.must if name not in taken.params]
    extra = {name: key for name, key in weights.beside.items() if key not in optimizers_keys}
    refused = [name for name in missing if not _is_allowed(name, allow_missing)]
    surplus = [name for name in extra if not _is_allowed(name, allow_extra)]
    wrong = {**({"it lacks": refused} if refused else {}), **({"it has more": surplus} if surplus else {})}
    taken.wrong = {**wrong, **taken.wrong}
    if len(missing) > len(refused):
        taken.left.append(_listed("as the model has them", [name for name in missing if name not in refused]))
    if len(extra) > len(surplus):
        taken.left.append(_listed("left out", [name for name in extra if name not in surplus]))


def _left_over(tree: _found.Tree, used: Sequence[str]) -> List[str]:
    """The outermost keys of which nothing is taken."""
    if not isinstance(tree.root, dict):
        return []
    heads = {place.split(".")[0] for place in used}
    return [str(key) for key in tree.root if str(key) not in heads | _KNOWN and not _found.is_tensor(tree.root[key])
            and not tree.is_flat and not any(place == str(key) or place.startswith(f"{key}.") for place in used)]


# ---- all of it ----


def _examine(what: str, tree: _found.Tree, wanted: _Wanted, optim: Any, how: Mapping[str, Any]) -> _Taken:
    """What is taken; Mismatch lists all that does not fit."""
    taken, moments = _Taken(), how["moments"]
    found = _found.contents(tree)
    weights = _take_weights(what, tree, found, wanted, how["weights"], taken)
    flat = _found.take_flat(found, [weights.prefix + name for name in weights.at])
    _judge_names(wanted, weights, how["allow_missing"], how["allow_extra"], flat, taken)
    state = _found.find_optimizer(what, found, moments if isinstance(moments, str) else None) if moments else None
    needs = any(group.optimizer != "sgd" or group.momentum for group in wanted.group_of.values())
    used = [weights.where]
    if state is not None:
        _add_manifest(tree, state)
        source = _by_names(what, state, wanted, optim, how["names"], weights.prefix)
        _rules.judge(what, source, wanted.group_of, how["allow_options"])
        _take_moments(what, source, wanted, how["allow_missing"], taken)
        used.append(state.where)
        open_question = _rules.unsaid(source, wanted.group_of)
        taken.left += [open_question] if open_question else []
        taken.left += [f"{source.unread} of its options are no data for this torch"] if source.unread else []
        taken.differences = _rules.differences(source.options, wanted.group_of)
    elif moments and needs and not _all_allowed(wanted, how["allow_missing"]):
        _refuse(what, taken.wrong)
        raise Mismatch(f"{what} has weights, and no optimizer's state that is known: without moments a run does not go "
                       "on as it was. Take the weights alone: moments=False, with first_step=N if a schedule is to go "
                       "on; or give both: [weights, optimizer]")
    elif not moments and found.optimizers:
        taken.left.append("the moments in " + ", ".join(one.where for one in found.optimizers[:3]))
        used += [one.where for one in found.optimizers]
    _refuse(what, taken.wrong)
    _take_step(what, tree, found, how["first_step"], bool(moments), taken)
    _take_missed(wanted, taken)
    taken.left += [_listed("not looked at", over) for over in [_left_over(tree, used)] if over]
    return taken


def _add_manifest(tree: _found.Tree, state: _found.OptimizerState) -> None:
    """A snapshot of Cairn has its hyper-parameters in the manifest, and calls SGD's momentum exp_avg."""
    manifest = tree.root.get("manifest") if isinstance(tree.root, dict) else None
    if not isinstance(manifest, dict):
        return
    try:
        spec = manifest["spec"]
        groups = {group["name"]: group for group in spec["groups"]}
        missed = manifest.get("steps_missed", {})
        for tensor in spec["tensors"]:
            if tensor["kind"] == "trained" and tensor.get("alias_of") is None:
                group, arrays = groups[tensor["group"]], state.state.get(tensor["name"], {})
                state.options[tensor["name"]] = _rules.of_group(group)
                if missed:
                    state.options[tensor["name"]]["step"] = manifest["step"] - missed.get(tensor["name"], 0)
                if group["optimizer"] == "sgd" and "exp_avg" in arrays:
                    arrays["momentum_buffer"] = arrays.pop("exp_avg")
    except (KeyError, TypeError, ValueError):
        raise Invalid("manifest.json describes no job: `cairn snapshot verify` says what is wrong with it") from None


def _all_allowed(wanted: _Wanted, allow_missing: Sequence[str]) -> bool:
    return all(_is_allowed(name, allow_missing) for name in wanted.group_of)


def _told(job: str, path: Source, tree: _found.Tree, wanted: _Wanted, taken: _Taken) -> Imported:
    buffers = sum(name in wanted.buffers for name in taken.params)
    moments = ", ".join(f"{array} of {count}" for array, count in taken.arrays.items()) or "no moments"
    text = (f"{len(taken.params) - buffers} parameters, {buffers} buffers, {moments}, step {taken.step} "
            f"({taken.step_from}) from {path}, {tree.form}; left: {'; '.join(taken.left) or 'nothing'}")
    return Imported(str(path), tree.form, len(taken.params) - buffers, buffers, dict(taken.arrays), taken.step,
                    taken.step_from, tuple(taken.left), text)


def _read(tree: _found.Tree, taken: _Taken, items: Sequence[Item], room: Room) -> Values:
    import torch
    at = [taken.params[name] if plane == "param" else taken.moments[name, plane] for name, plane, _ in items]
    values: Values = {}
    for (name, plane, _), value in zip(items, tree.read(at, room)):
        why = why_no_moment(plane, value)
        if why is not None:
            raise Mismatch(f"{tree.form}: {plane} of {name} {why}: the file is damaged, or of another optimizer. Take "
                           "the weights alone: moments=False")
        values.setdefault(plane, {})[name] = value.detach().to(torch.float32)
    return values


def _items(wanted: _Wanted, taken: _Taken) -> List[Item]:
    """A tensor after the other: parameters are hashed while moments are read."""
    of = [(name, plane) for name in wanted.shapes if name in taken.params and name not in wanted.kept
          for plane in ("param", "exp_avg", "exp_avg_sq", "ema") if plane == "param" or (name, plane) in taken.moments]
    return [(name, plane, 4 * product(wanted.shapes[name])) for name, plane in of]


def _fill_kept(tree: _found.Tree, wanted: _Wanted, taken: _Taken) -> None:
    """Buffers of integers and the like, which attach keeps as their bytes, and frozen parameters that stay here."""
    import torch
    with torch.no_grad():
        for name, kept in wanted.kept.items():
            if name in taken.params and not kept.is_meta:
                kept.copy_(_found.value_of(taken.params[name]))


def import_checkpoint(session: Any, path: Union[Source, Sequence[Source]], model: Any, optim: Any, *,
                      names: Optional[Sequence[str]] = None, moments: Union[bool, str] = True,
                      weights: Optional[str] = None, first_step: Optional[int] = None,
                      allow_missing: Sequence[str] = (), allow_extra: Sequence[str] = (),
                      allow_options: Sequence[str] = (), **options: Any) -> Any:
    """Attaches a model as Session.attach does, to a job that goes on where a checkpoint of torch ends: with its
    parameters, the optimizer's moments and the step. Every worker calls it; rank 0 reads `path`, the others wait.
    Called again, with a job that has its state, it attaches only; interrupted, and called again, it begins anew.

    path           a DCP folder; a file of torch.save or safetensors; the folder that Trainer, accelerate or torchtune
                   wrote; a snapshot of Cairn, or what `cairn snapshot export --format dcp` made of one; or a list of
                   them: [weights, optimizer]. Read as data: Invalid if there is code in it
    optim          of the job. A torch optimizer also says in which order the file's numbered state has parameters
    names          says that where no torch optimizer does: the parameters' names, in the file's order
    moments        False: the weights alone; a text: which of several optimizers of the file ("optimizer_states.1")
    weights        which of several sets of weights ("ema")
    first_step     how many steps the run has made, where the checkpoint does not say
    allow_missing  tensors, or patterns of them, that it need not have, or no moments of: they are as the model has
                   them, moments 0
    allow_extra    tensors, or patterns, that it may have beyond the model's
    allow_options  options of the file's optimizer ("amsgrad") that the job's need not have
    options        of attach; of `init` what the checkpoint does not have, so who attaches later gives no more of it

    One line (the logger "cairn", level info; `imported` of the returned model) tells what was taken, and what was left.
    Mismatch lists what is missing, what is there beyond, other shapes, and moments of another optimizer; its `lists`
    has all names. Parameters at different steps go on by their own counts, as in torch. Learning rates and other
    numbers are those of `optim`; where the checkpoint has others, the log says so."""
    if options.get("init_from") is not None:
        raise Invalid("init_from and a checkpoint are two initial states: give one")
    if not isinstance(moments, (bool, str)):
        raise Invalid(f"moments is {moments!r}; True, False, or the name of an optimizer's state is taken")
    for word, given in (("allow_missing", allow_missing), ("allow_extra", allow_extra),
                        ("allow_options", allow_options), ("names", names)):
        if isinstance(given, str):
            raise Invalid(f"{word} is the text {given!r}; a list is taken: {word}=[{given!r}]")
    from .torch import _taken as taken_over
    paths = list(path) if isinstance(path, (list, tuple)) else [path]
    what = " and ".join(map(str, paths))
    optim = taken_over(optim)
    with contextlib.ExitStack() as ends:
        tree = _found.read_all(paths)
        ends.callback(tree.close)
        wanted = _wanted(model, optim, options.get("wire_dtype"))
        taken = _examine(what, tree, wanted, optim, dict(
            names=names, moments=moments, weights=weights, first_step=first_step, allow_missing=allow_missing,
            allow_extra=allow_extra, allow_options=allow_options))
        _fill_kept(tree, wanted, taken)
        pouring = Pouring(functools.partial(_read, tree, taken), _items(wanted, taken),
                          options.get("timeout", TIMEOUT_S))
        ends.callback(pouring.close)
        m = session.attach(model, optim, first_step=taken.step, steps_missed=taken.missed,
                           _initial=pouring, **options)
    if pouring.is_done:
        m.imported = _told(m.name, what, tree, wanted, taken)
        _log.imported(m.name, m.imported.text)
        for difference in taken.differences:
            _log.waits(m.name, difference)
    return m
