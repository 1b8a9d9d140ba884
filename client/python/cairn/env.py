"""What the launcher says of this process: CAIRN_*, torchrun, Slurm, Open MPI, in this order (`cairn env` shows it)."""

from __future__ import annotations

import ctypes
from typing import NamedTuple

from . import _c
from ._call import check


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
