"""A torch model filled from a job's versions, by a process that does not train: evaluation, generation. The trainer's
side is cairn.torch."""

from __future__ import annotations

from typing import Any, Dict, List, Optional, Tuple

import torch
from torch import nn

from . import _blobs, _buffers, _transfer
from ._call import TIMEOUT_S
from ._model import Slot, buffers_of, slots_of
from .errors import Busy, Mismatch, NoMemory, NotFound, VersionGone
from .job import Job
from .operation import Lease
from .session import Session
from .spec import Version

_LEASE_S = 60.0  # a load that takes longer may find its version gone

Targets = List[Tuple[Slot, torch.Tensor]]


def match(job: Job, slots: List[Slot]) -> None:
    """The slots have the names and shapes of the job, and take its dtypes on the wire; Mismatch lists what differs."""
    there = {tensor.name: tensor for tensor in job.tensors()
             if tensor.alias_of is None and tensor.kind not in ("buffer", "blob")}
    here = {slot.name: tuple(slot.parameter.shape) if slot.whole is None else slot.whole for slot in slots}
    odd = [f"{name}: {list(shape)} here, {list(there[name].shape)} in the job"
           for name, shape in here.items() if name in there and shape != there[name].shape]
    odd += [f"{name}: not in the job" for name in here.keys() - there.keys()]
    odd += [f"{name}: not in the model" for name in there.keys() - here.keys()]
    if odd:
        raise Mismatch(f"the model is not that of job {job.name}: " + "; ".join(sorted(odd)[:10])
                       + (f"; and {len(odd) - 10} more" if len(odd) > 10 else ""))
    for slot in slots:
        slot.wire = there[slot.name].wire


class Reader:
    """Reads a job's versions beside its training, for evaluation and generation. Made by cairn.reader."""

    def __init__(self, session: Session, name: str, timeout: float = TIMEOUT_S):
        self.name, self.timeout = name, timeout
        self._session, self._job = session, session.open_reader(name, timeout)

    def __enter__(self) -> "Reader":
        return self

    def __exit__(self, *_: Any) -> None:
        self.close()

    def close(self) -> None:
        """Closes its session, too."""
        self._job.close()
        self._session.close()

    @property
    def job(self) -> Job:
        return self._job

    def wait(self, newer_than: Optional[Version] = None, timeout: Optional[float] = None) -> Version:
        """The newest version; with newer_than: once there is a newer one."""
        least = Version(0, 0) if newer_than is None else Version(newer_than.generation, newer_than.step + 1)
        return self._job.version_wait(least, self.timeout if timeout is None else timeout)

    def lease(self, version: Optional[Version] = None, ttl: float = _LEASE_S) -> Lease:
        """Keeps a version (None: the newest) while it is read: `with reader.lease() as version:`. See Job.lease."""
        return self._job.lease(Version(0, 0) if version is None else version, ttl, self.timeout)

    def _load(self, version: Optional[Version], targets: Targets, averages: Targets,
              raw: Dict[str, torch.Tensor]) -> Version:
        newest = self.wait() if version is None else version  # and until there is one
        try:
            lease = self.lease(version)
        except (Busy, NoMemory):  # no room for it: training may overtake this
            self._load_all(newest, targets, averages, raw)
            return newest
        with lease as kept:
            self._load_all(kept, targets, averages, raw)
        return kept

    def _load_all(self, version: Version, targets: Targets, averages: Targets, raw: Dict[str, torch.Tensor]) -> None:
        _transfer.load(self._job, version, averages, self.timeout, wire="f32", plane="ema")  # these are gone first
        _transfer.load(self._job, version, targets, self.timeout)
        _buffers.load(self._job, version, raw, self.timeout)

    def _average(self, targets: Targets) -> Tuple[Targets, Targets]:
        """What is read as it is published, and what has an average."""
        has = [self._job.has_plane(slot.name, "ema") for slot, _ in targets]
        if not any(has):
            raise NotFound(f"job {self.name} keeps no average: attach its trainer with cairn.AdamW(…, ema=0.999), or "
                           "make a job of its snapshot, `cairn job create --from JOB/latest --set GROUP.ema=0.999`")
        return ([target for target, averaged in zip(targets, has) if not averaged],
                [target for target, averaged in zip(targets, has) if averaged])

    def blob(self, name: str, version: Optional[Version] = None) -> bytes:
        """The bytes of a blob at a version (None: the newest). VersionGone if it is not kept any more."""
        return _blobs.read(self._job, name, self.timeout, version)

    def load_into(self, model: nn.Module, version: Optional[Version] = None, ema: bool = False) -> Version:
        """Brings a version (None: the newest) into a model with the names and shapes of the trained one; Mismatch lists
        differences. It is leased while it is read. VersionGone if the version asked for is not kept any more. Buffers
        that the job has come along, as its trainer wrote them; others are left as they are. `ema`: the moving averages
        of the parameters that have one, in fp32, instead of these. There is only that of the newest version, and no
        lease keeps it: where training goes on faster than it is read, VersionGone says so, and a snapshot has it
        (`cairn snapshot export --ema`)."""
        slots = slots_of(model)
        match(self._job, slots)
        targets = [(slot, slot.parameter.data) for slot in slots]
        kept = {tensor.name: tuple(tensor.shape) for tensor in self._job.tensors() if tensor.kind == "buffer"}
        targets += [(slot, slot.parameter) for slot in buffers_of(model)
                    if kept.get(slot.name) == tuple(slot.parameter.shape)]
        raw = _buffers.there(self._job, _buffers.raw_of(model))
        targets, averages = self._average(targets) if ema else (targets, [])
        for _ in range(_transfer.TRIES):
            try:
                return self._load(version, targets, averages, raw)
            except VersionGone:
                if version is not None:
                    raise
        raise VersionGone(f"job {self.name} goes on faster than it can be read here; {_transfer.TRIES} versions "
                          "were gone")
