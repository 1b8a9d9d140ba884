"""What of an attached model is another than it was: its modules and parameters, which of these require a gradient, and
values that were written here. No server hears of any of it, and torch would go by it; so it is said before a step is
committed, with the call that tells the servers.

Values are compared by sums over their bits, as 64-bit integers, row by row of 2 KiB, in which each has a weight by its
place, so that values which only change places (a shuffle, a roll) are seen, too. torch's _version tells of a write by
p.clamp_() but not of one by p.data.clamp_(), and it tells of values that were put back, too (an average that is
evaluated and taken out again). Small tensors are copied into one, since a call costs more than they do. Measured, one
thread of a machine that others use, too: looking twice a step takes 0.3 to 0.7 % of it for a transformer of 12 blocks
of 256 (8 × 64 tokens), 2.3 % for 5,000 tensors of 1,024 elements, and at the worst, four Linear(2048, 2048) with 4
rows of input, whose passes do little but read weights, 5 to 7 %; that was without weights, which make a look at large
tensors 1.3 to 2 times as long (busy machine).
"""

from __future__ import annotations

from typing import Any, Dict, Iterable, List, Sequence, Tuple

import torch
from torch import nn

from ._model import Slot, own_name
from .errors import Invalid, first_of, some_of

_SHOWN = 4


def _those(names: Sequence[str], one: str, more: str) -> str:
    """They are listed, and what they do."""
    return f"{some_of(names, _SHOWN)} {one if len(names) == 1 else more}"


def _spelled(names: Sequence[str], value: str = "") -> str:
    """The elements of a list or dictionary of these names, as they are written in a call."""
    return first_of([f"{name!r}{value}" for name in names], _SHOWN)


# ---- modules and parameters ----

class Structure:
    """Whether the model still has the parameters that were attached, and no others that are to be trained."""

    def __init__(self, model: nn.Module, slots: Sequence[Slot]):
        self._model, self._slots = model, slots
        self._attached = {id(slot.parameter) for slot in slots}
        self._names = {name: slot.parameter for slot in slots for name in [slot.name] + slot.aliases}
        self.gone: List[Slot] = []  # trained ones that the model does not have now
        self._look()

    def _look(self) -> None:
        self._seen = [(there, list(there.values())) for module in self._model.modules()
                      for there in (module._parameters, module._modules)]

    def _is_as_seen(self) -> bool:
        return all(len(there) == len(seen) and all(a is b for a, b in zip(there.values(), seen))
                   for there, seen in self._seen)

    def judge(self) -> None:
        if self._is_as_seen():
            return
        now: Dict[int, Tuple[str, nn.Parameter]] = {}
        for prefix, module in self._model.named_modules():
            for last, parameter in module._parameters.items():
                if isinstance(parameter, nn.Parameter):
                    now.setdefault(id(parameter), (own_name(f"{prefix}.{last}".lstrip(".")), parameter))
        new = {name: parameter for key, (name, parameter) in now.items() if key not in self._attached}
        replaced = next((name for name, one in now.values() if self._names.get(name, one) is not one), None)
        if replaced is not None:
            raise Invalid(f"{replaced} of the model is another parameter than the one that was attached (fully_shard, "
                          "or an assignment): its gradients would reach nobody. Change models before attach; to "
                          "change values: m.write({name: values})")
        added = [name for name, parameter in new.items() if parameter.requires_grad]
        if added:
            raise Invalid(self._why_added(added, new))
        self.gone = [slot for slot in self._slots if slot.trained and id(slot.parameter) not in now]
        self._look()

    @staticmethod
    def _why_added(added: Sequence[str], new: Dict[str, nn.Parameter]) -> str:
        tensor = f"cairn.Tensor({added[0]!r}, {tuple(new[added[0]].shape)}, UNIT, GROUP, init=cairn.Init('zeros'))"
        what = _those(added, "of the model was not there at attach and requires",
                      "of the model were not there at attach and require")
        return (f"{what} a gradient: nobody trains that. "
                "m.close(), and attach the model as it is now with another name=…: a job that begins with the values "
                "that the model has, and without moments, as a new torch optimizer does. To go on with this job and "
                f"its moments, as add_param_group does: m.job.amend(add=[{tensor}, …]), m.close(), attach again, and "
                f"m.write({{{added[0]!r}: values, …}}). To keep them as they are: requires_grad_(False)")


def frozen_here(slots: Iterable[Slot]) -> List[Slot]:
    """Trained ones that require no gradient any more."""
    return [slot for slot in slots if not slot.parameter.requires_grad]


def judge_thawed(frozen: Iterable[Slot], groups: Sequence[str]) -> None:
    """Of `frozen`, what was so at attach."""
    names = [slot.name for slot in frozen if slot.parameter.requires_grad]
    if names:
        group = repr(groups[0]) if len(groups) == 1 else "GROUP"
        what = _those(names, "was frozen at attach and requires", "were frozen at attach and require")
        raise Invalid(f"{what} a gradient now: nobody trains that. "
                      f"m.amend(unfreeze_tensors={{{_spelled(names, ': ' + group)}}}) by one worker, then m.close() "
                      "and attach again by all; or requires_grad_(False)")


def why_frozen(names: Sequence[str]) -> str:
    return (f"{_those(names, 'requires', 'require')} no gradient, and the job trains that: weight decay and moments "
            f"would move it on, as torch does not. To freeze it: m.amend(freeze_tensors=[{_spelled(names)}]) between "
            "two steps, by one worker, and unfreeze_tensors=[…] where it is to be trained again. If that was for the "
            "pass of another model: requires_grad_(True) before m.step(). Nothing of this step was applied")


def why_gone(names: Sequence[str]) -> str:
    return (f"{_those(names, 'is', 'are')} not in the model any more, and the job trains that: weight decay and "
            f"moments would move it on. m.amend(freeze_tensors=[{_spelled(names)}]) between two steps, by one worker, "
            "leaves that as it is. Nothing of this step was applied")


# ---- values ----

_SMALL_BYTES = 16 << 10
_ROW = 256  # 64-bit integers; torch's threads share bmm's work only where a product has less than 400 terms
_UNIT = 8 * _ROW  # bytes
_WEIGHTS = torch.randint(-2 ** 62, 2 ** 62, (1, _ROW, 1), generator=torch.Generator("cpu").manual_seed(1),
                         device="cpu") * 2 + 1  # odd, so that no change of a single integer is lost


def _sums(data: torch.Tensor) -> torch.Tensor:
    """Of each row."""
    rows = data.view(torch.int64).view(-1, _ROW)
    if rows.device.type == "cpu":
        return torch.bmm(rows.unsqueeze(1), _WEIGHTS.expand(len(rows), _ROW, 1)).flatten()
    return torch.cat([rows.sum(1), rows.sum(0)])  # cards have no products of integers


def _flat(tensor: torch.Tensor) -> torch.Tensor:
    """In the order of its memory; a copy where that has gaps, or no 64-bit integers."""
    order = sorted(range(tensor.dim()), key=lambda i: tensor.stride(i), reverse=True)
    flat = tensor.permute(order).reshape(-1)
    return flat.clone() if flat.storage_offset() * flat.element_size() % 8 else flat


class _Look:
    """At tensors of one device: `sums` over the large ones and all of the small ones, whose bytes are `small`."""

    def __init__(self, tensors: Sequence[torch.Tensor]):
        self._pieces: List[Tuple[int, torch.Tensor]] = []  # of the large ones: which, and its bytes
        self._small: List[torch.Tensor] = []
        self._owners: List[int] = []
        self.is_a_view = True
        for i, tensor in enumerate(tensors):
            flat = _flat(tensor)
            self.is_a_view = self.is_a_view and flat.data_ptr() == tensor.data_ptr()
            data = flat.view(torch.uint8)
            whole = data.numel() // _UNIT * _UNIT if data.numel() > _SMALL_BYTES else 0
            if whole:
                self._pieces.append((i, data[:whole]))
            if whole < data.numel():
                self._small.append(data[whole:])
                self._owners.append(i)
        total = sum(data.numel() for data in self._small)
        self._pad = [torch.zeros(-total % _UNIT, dtype=torch.uint8, device=tensors[0].device)] if total else []

    def take(self) -> Tuple[torch.Tensor, torch.Tensor]:
        """`sums`, `small`."""
        sums = [_sums(data) for _, data in self._pieces]
        small = torch.cat(self._small + self._pad) if self._small else torch.empty(0, dtype=torch.uint8)
        if self._small:
            sums.append(_sums(small))
        self._lengths = list(map(len, sums))
        return torch.cat(sums), small

    def which(self, before: Tuple[torch.Tensor, torch.Tensor], now: Tuple[torch.Tensor, torch.Tensor]) -> List[int]:
        """The numbers of tensors that differ."""
        by_piece = zip(self._pieces, before[0].split(self._lengths), now[0].split(self._lengths))
        found = {i for (i, _), were, are in by_piece if not torch.equal(were, are)}
        at = 0
        for i, data in zip(self._owners, self._small):
            if not torch.equal(before[1][at:at + data.numel()], now[1][at:at + data.numel()]):
                found.add(i)
            at += data.numel()
        return sorted(found)


def bits(tensor: torch.Tensor) -> torch.Tensor:
    """Sums over them, which differ where values do; on the tensor's device, and nobody waits for them."""
    return _Look([tensor]).take()[0]


class Values:
    """Whether parameters have the values that were fetched, at the last `note`. Where they are does not matter: a
    model may be moved to another device."""

    def __init__(self, slots: Iterable[Slot]):
        self._slots = [slot for slot in slots if slot.parameter.numel() > 0]
        self._places: List[Any] = []
        self._looks: List[Tuple[List[int], _Look, Tuple[torch.Tensor, torch.Tensor]]] = []  # one a device
        self._layouts: List[Tuple[torch.device, Tuple[int, ...]]] = []

    def _places_now(self) -> List[Any]:
        return [(slot.parameter.data_ptr(), slot.parameter.is_contiguous()) for slot in self._slots]

    def note(self) -> None:
        """They have what they should."""
        places = self._places_now()
        if places == self._places and all(look.is_a_view for _, look, _ in self._looks):
            self._looks = [(which, look, look.take()) for which, look, _ in self._looks]
            return
        self._places = places
        tensors = [slot.parameter.data for slot in self._slots]
        self._layouts = [(one.device, one.stride()) for one in tensors]
        self._looks = []
        for device in {one.device for one in tensors}:
            which = [i for i, one in enumerate(tensors) if one.device == device]
            look = _Look([tensors[i] for i in which])
            self._looks.append((which, look, look.take()))

    def changed(self) -> List[Slot]:
        moved = self._places_now() != self._places
        found: List[int] = []
        for which, look, before in self._looks:
            look = _Look([self._as_noted(i) for i in which]) if moved or not look.is_a_view else look
            now = look.take()
            if not torch.equal(before[0], now[0]):
                found += [which[i] for i in look.which(before, now)]
        return [self._slots[i] for i in sorted(found)]

    def _as_noted(self, i: int) -> torch.Tensor:
        """Its values now, where and how they were then."""
        now, (device, stride) = self._slots[i].parameter.data, self._layouts[i]
        if now.device == device and now.stride() == stride:
            return now
        return torch.empty_strided(now.shape, stride, dtype=now.dtype, device=device).copy_(now)


def why_written(names: Sequence[str], sentence: str) -> str:
    return (f"{_those(names, 'has', 'have')} other values than the servers gave: they were "
            "written here, where the next fetch undoes it. What all workers are to go on with is written to the "
            f"servers, between two steps: m.write({{{_spelled(names, ': values')}}}), in place of the write here or "
            f"after it; m.resume() takes the servers' values back. {sentence}")


def why_gathered(names: Sequence[str]) -> str:
    return (f"{some_of(names, _SHOWN)}: what is written within m.gathered is in this worker's copy alone, and ends "
            f"with the block. m.write({{{_spelled(names, ': values')}}}) between two steps writes it to the servers")


# ---- what they are kept as ----

def judge_dtypes(slots: Iterable[Slot], dtypes: Sequence[torch.dtype]) -> None:
    other = next(((slot, dtype) for slot, dtype in zip(slots, dtypes) if slot.parameter.dtype != dtype), None)
    if other is not None:
        slot, dtype = other
        raise Invalid(f"{slot.name} is {slot.parameter.dtype} now and was {dtype} at attach (.double(), .half(), "
                      ".to()): the job sends it as it was. Convert it back and call m.resume(); or m.close() and "
                      "attach the converted model, with wire_dtype=torch.float32 where that is to be the same job; "
                      "for an evaluation convert a copy.deepcopy(model)")
