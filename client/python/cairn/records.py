"""What the calls of a session tell."""

from __future__ import annotations

import ctypes
from typing import NamedTuple, Optional

from . import _c
from .spec import Version


class Round(NamedTuple):
    """One attempt at a step. Address the batch by (index, rank, world); multiply the loss by loss_scale. `index` is
    step + skips: a round that was skipped leaves the step, and its batch is used up all the same.

    `micro_batches`: the numbers of this worker's, for k in here.micro_batches. With global_batch they are dealt over
    the workers of the round; a surplus one has none, and its step() waits for the round's end."""

    round: int
    step: int
    epoch: int
    version: Version
    rank: int
    world: int
    loss_scale: float
    revision: int
    micro_batches: range
    skips: int  # rounds of the job that were skipped so far
    index: int
    seed: int = 0  # the job's
    global_batch: int = 0  # micro-batches of the step, whoever is there; 0: each worker has its own

    def micro_seed(self, micro: int) -> int:
        """For what is random in a micro-batch (dropout, which rows), below 2^63: of the job's seed, the index and the
        number alone, so the same whoever computes it, and when a void round is computed again."""
        made = _c.Round(rank=self.rank, world=self.world, index=self.index, seed=self.seed,
                        global_batch=self.global_batch)
        return _c.lib().cairn_micro_seed(ctypes.byref(made), micro)


class Result(NamedTuple):
    """How a round ended. `step` and `version`: after it, `index` too: the number of the next batch. `applied` is False
    if it was skipped, `finite` if a gradient was the reason. `nonfinite`: of so many elements the parameter, a moment
    or the published copy is not finite after the update, although the gradients were; if the round was skipped, the
    gradient, summed over the workers. `nonfinite_tensors` says of which tensors."""

    step: int
    version: Version
    grad_norm: float
    clip_scale: float
    lr: float
    applied: bool
    finite: bool
    loss_scale: float
    skips: int
    index: int
    nonfinite: int
    nonfinite_tensors: str


class ClientState(NamedTuple):
    """Bytes of the trainer's own, and the version that they belong to."""

    data: bytes
    version: Version


class Stats(NamedTuple):
    """What went to and fro, in bytes. Since the job was opened, resent ones included (`shared_`: of these, through
    memory that this process shares with shards of this host); units that were mapped, `maps_lent` of them where
    shards published them; and memory: of gradients that are added up, of mapped units, of copies."""

    pushed_bytes: int
    fetched_bytes: int
    put_bytes: int
    accumulated_bytes: int
    mapped_bytes: int
    mapped_bytes_peak: int
    maps: int
    maps_prefetched: int
    maps_over_window: int
    prefetches_dropped: int
    packed_bytes: int
    packed_bytes_peak: int
    assembled_bytes: int
    assembled_bytes_peak: int
    maps_lent: int
    shared_pushed_bytes: int
    shared_fetched_bytes: int
    device_pushed_bytes: int
    device_fetched_bytes: int


class JobInfo(NamedTuple):
    """The job as the servers have it."""

    name: str
    rank: int
    workers_min: int
    clip_norm: float
    loss_scale: float
    on_nonfinite: str
    newest: Version
    initialized: bool
    stage: int
    micro_batches: int
    client_state_max: int
    reduce_groups: str
    workers_max: int = 0  # 0: as many as the cluster allows
    global_batch: int = 0
    seed: int = 0
    revision: int = 0  # counts amendments; that of when the job was opened here
    found_step: Optional[int] = None  # at which it stood when it was opened; None: it had taken no step
    made_by: str = ""  # "worker trainer-4711"; "": not known
