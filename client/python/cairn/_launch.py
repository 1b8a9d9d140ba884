"""Who comes together, and how many workers the job is to have: what attach takes of it."""

from __future__ import annotations

from typing import Any, Dict, Optional, Tuple

from .env import env
from .errors import Invalid
from .spec import START_WAIT_S, at_least, workers_of


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
