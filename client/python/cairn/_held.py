"""A model whose parameters are the servers', at a version: what a trainer's attachment (torch.py) and a reader's
(reading.py) have in common."""

from __future__ import annotations

import contextlib
import weakref
from fnmatch import fnmatchcase
from typing import Any, Dict, Iterator, List, Optional, Sequence, Union

import torch
from torch import nn

from . import _blobs, _lent, _transfer
from ._model import Slot, Unit
from ._window import Memory, Window
from ._wrapped import inner, own_name
from .errors import Invalid, VersionGone
from .job import Job
from .session import Session
from .spec import Version

TRIES = 20  # a version that is gone, because others go on, is asked for again as a newer one

_attached: "weakref.WeakSet[Held]" = weakref.WeakSet()  # in this process, of any session


class Held:
    """`_window` is there in stage 3 only. Subclasses set `_job`, and close."""

    _job: Job

    def __init__(self, session: Session, model: nn.Module, name: Optional[str], timeout: float):
        self.model, self.name = model, type(inner(model)).__name__.lower() if name is None else name
        self.timeout = timeout
        self.blobs: Dict[str, int] = {}  # bytes of each
        self._session = session
        self._slots: List[Slot] = []
        self._buffers: List[Slot] = []
        self._raw: Dict[str, torch.Tensor] = {}  # buffers that are kept as their bytes, by name
        self._window: Optional[Window] = None
        self._version = Version(0, 0)

    def close(self) -> None:
        raise NotImplementedError

    def __enter__(self) -> Any:
        return self

    def __exit__(self, *_: Any) -> None:
        self.close()

    def _judge_claims(self) -> None:
        """Nobody else's parameters, but for frozen ones of both, which nobody changes."""
        ours = {id(slot.parameter): slot for slot in self._slots}
        for other in [one for one in _attached if not (one.job.closed or one._session.closed)]:
            if inner(other.model) is inner(self.model):
                raise Invalid(f"this {type(inner(self.model)).__name__} is attached already: two jobs cannot drive the "
                              "same parameters; close() the other one first")
            shared = [(ours[id(theirs.parameter)], theirs) for theirs in other._slots if id(theirs.parameter) in ours]
            names = [(mine.name, theirs.name) for mine, theirs in shared if mine.trained or theirs.trained]
            if names:
                more = f" and {len(names) - 1} more" if len(names) > 1 else ""
                raise Invalid(f"{names[0][0]} of this model is {names[0][1]} of the one that is attached as job "
                              f"{other.name}{more}: each of two jobs would have its own, and the last one to step "
                              "would count here. Attach one module that has both: nn.ModuleDict({'a': one, 'b': the "
                              "other}), whose parts are called as before; or close() the other one first")

    def _claim(self) -> None:
        _attached.add(self)

    def _unclaim(self) -> None:
        _attached.discard(self)

    def __reduce_ex__(self, protocol: Any) -> Any:
        raise Invalid(f"an attachment is this process's part in job {self.name}, and is neither copied nor pickled: "
                      "copy or pickle m.model, in stage 3 take m.state_dict(); another process attaches by itself")

    def __repr__(self) -> str:
        where = "closed" if self.job.closed else f"stage {self.stage}, version {self._version.step}"
        return f"<{type(self).__name__} of job {self.name}: {type(inner(self.model)).__name__}, {where}>"

    @property
    def job(self) -> Job:
        return self._job

    @property
    def version(self) -> Version:
        """Of the parameters that the model has."""
        return self._version

    # ---- into the model's memory ----

    def _resident(self) -> List[Slot]:
        return [slot for slot in self._slots if self._window is None or slot not in self._window]

    def _start(self, slot: Slot, into: torch.Tensor) -> _transfer.Landing:
        return _transfer.Landing(self._job, self._version, slot.name, slot.wire, into, box=slot.box)

    def _lend(self, unit: Unit, had: Optional[_lent.Loan]) -> Optional[_lent.Loan]:
        return None

    def _before_load(self) -> None:
        if self._window is not None:
            self._window.release_all()
            self._window.end_loans()

    def _load(self, version: Version, is_as_left: bool = False) -> bool:
        """`is_as_left`: nobody wrote to the parameters here, so that frozen ones, which only another generation
        changes, are what they were, and stay: then it is True."""
        stays = is_as_left and version.generation == self._version.generation
        self._version = Version(0, 0)  # of none, should this fail
        self._before_load()
        coming = [slot for slot in self._resident() if not (stays and slot.kind == "frozen")]
        _transfer.load(self._job, version, [(slot, slot.parameter.data) for slot in coming], self.timeout)
        self._version = version
        return stays

    def _load_newest(self, at_least: Version) -> None:
        for _ in range(TRIES):
            try:
                self._load(self._job.version_wait(at_least, self.timeout))
                return
            except VersionGone as gone:
                last = gone
        raise last

    # ---- what it shows ----

    def _chosen(self, what: Union[str, nn.Module, torch.Tensor]) -> List[Slot]:
        if isinstance(what, str):
            found = [slot for slot in self._slots
                     if any(fnmatchcase(name, what) for name in [slot.name] + slot.aliases)]
        elif isinstance(what, (nn.Module, torch.Tensor)):
            inside = {id(one) for one in (what.parameters() if isinstance(what, nn.Module) else [what])}
            found = [slot for slot in self._slots if id(slot.parameter) in inside]
            what = type(what).__name__
        else:
            raise Invalid(f"gathered: {what!r} is no name, pattern, module or parameter")
        if not found:
            raise Invalid(f"gathered: {what!r} matches no parameter of the model")
        return found

    @contextlib.contextmanager
    def gathered(self, *what: Union[str, nn.Module, torch.Tensor]) -> Iterator[None]:
        """Stage 3: parameters that are read outside their module are here inside the block; keep it around backward
        too, and copy what is to be kept longer. Names, patterns, modules or parameters; one that is not of the
        model is an error."""
        chosen = {slot for one in what for slot in self._chosen(one)}
        if not chosen:
            raise Invalid("gathered: say which parameters, by names, patterns or modules")
        if self._window is None:
            yield
            return
        window = self._window
        unit = window.hold([slot for slot in self._slots if slot in chosen])
        try:
            yield
        finally:
            window.let_go(unit)

    def memory(self) -> Memory:
        """Bytes of gathered parameters, stage 3 (in the other stages all of them stay here), lent ones, and those of
        gradients on their way. m.job.stats() counts what was sent, and how much of it through shared memory."""
        root = sum(slot.parameter.numel() * slot.parameter.element_size() for slot in self._resident())
        return Memory(0, 0, 0, 0, root) if self._window is None else self._window.memory(root)

    def state_dict(self, plane: str = "param") -> Dict[str, torch.Tensor]:
        """The newest state, read from the servers: fp32 masters ("param"), or a plane of the optimizer ("exp_avg",
        "exp_avg_sq"), which only trained tensors have. Tied names show one tensor; the buffers are the model's own; a
        blob with the name of a module's extra state is that, as a tensor of uint8."""
        slots = [slot for slot in self._slots if slot.trained or plane == "param"]
        into = {slot: torch.empty(self._shape(slot), dtype=torch.float32) for slot in slots}
        for _ in range(TRIES):
            try:
                newest = self._job.version_wait(timeout=self.timeout)
                _transfer.load(self._job, newest, list(into.items()), self.timeout, wire="f32", plane=plane, whole=True)
                extra = _blobs.extra_state(self._job, self.blobs, self.timeout, newest) if plane == "param" else {}
                break
            except VersionGone as gone:
                last = gone
        else:
            raise last
        named = {name: into[slot] for slot in slots for name in [slot.name] + slot.aliases}
        if plane == "param":
            persistent = set(map(own_name, self.model.state_dict(keep_vars=True)))
            buffers = [(own_name(name), buffer) for name, buffer in self.model.named_buffers()]
            named.update((name, buffer) for name, buffer in buffers if name in persistent)
            named.update((name, value) for name, value in extra.items() if name in persistent)
        return named

    def _shape(self, slot: Slot) -> Sequence[int]:
        if slot.whole is not None:
            return slot.whole
        inside = self._window is not None and slot in self._window
        return self._window.shape(slot) if inside else slot.parameter.shape  # type: ignore[union-attr]
