"""What the launcher says of this process: CAIRN_*, torchrun, Slurm, Open MPI, in this order (`cairn env` shows it)."""

from __future__ import annotations

import ctypes
from typing import Any, Dict, NamedTuple, Optional

from . import _c
from ._call import check
from .errors import Invalid
from .spec import START_WAIT_S, at_least, workers_of


class Env(NamedTuple):
    """What the launcher says of this process. Rank is not identity: address the batch by a round's rank and world, and
    key no state on this one."""

    rank: int
    world: int
    local_rank: int
    node_rank: int
    restarts: int
    launcher: str
    run_id: str
    endpoint: str


def env() -> Env:
    """Rank and world of this process, by its environment. Invalid names a variable that cannot be read, or the one of
    rank and world that is missing."""
    out = _c.Env()
    check(_c.lib().cairn_env_read(ctypes.byref(out)))
    return Env(out.rank, out.world, out.local_rank, out.node_rank, out.restarts, out.launcher.decode(),
               out.run_id.decode(), out.endpoint.decode())


# ==== who comes together ====

# Who comes together, and how many workers the job is to have: what attach takes of it.


def launch(rank: Optional[int], workers: Any, workers_min: Optional[int], world: Optional[int],
           start_wait: Optional[float]) -> Dict[str, Any]:
    """The fields of a JobSpec. Where nothing is said, those of the environment: as many workers as it launched. Of a
    rank that was given it knows nothing, and the launch is of as many as there may be."""
    here = env()
    if workers is not None and workers_min is not None:
        raise Invalid("workers and workers_min are both given: workers=(min, max) says both")
    if world is not None:
        at_least(1, "world", world)
    if workers is None and workers_min is None:
        workers = here.world if world is None else world
    least, most = workers_of(workers) if workers is not None else (at_least(1, "workers_min", workers_min), 0)
    if world is None:
        world = _world(least, most, here.world if rank is None else None)
    return dict(rank=here.rank if rank is None else rank, workers_min=least, workers_max=most, world=world,
                start_wait=START_WAIT_S if start_wait is None else start_wait)


def _world(least: int, most: int, launched: Optional[int]) -> int:
    if least == most:
        return least
    return launched if launched is not None else most or least
