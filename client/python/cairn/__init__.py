"""Cairn from Python: the optimizer's state and the parameters live in servers, the trainer owns nothing.

    import cairn
    c = cairn.connect()                                    # torchrun, Slurm, Open MPI or CAIRN_* environment
    m = c.attach(model, optim=cairn.AdamW(lr=3e-4), clip_norm=1.0)
    for batch in data:
        loss = model(batch); loss.backward()               # gradients are pushed as autograd makes them
        info = m.step()                                    # raises EpochChanged: somebody came or went, recompute

torch is imported by attach and reader only. The layer below, without torch, is Session, Job and RoundHandle:
cairn.h with exceptions.
"""

import inspect as _inspect
import re as _re
import types as _types

from .env import Env, env
from .errors import *  # noqa: F401,F403
from .errors import CairnError
from .job import Job, RoundHandle
from .operation import Lease, Operation
from .optim import SGD, Adam, AdamW, constant, cosine, driven, from_torch, linear, table, wsd
from .records import ClientState, JobInfo, Result, Round, Stats
from .session import Session
from .spec import Box, Group, Init, JobSpec, Part, Schedule, Tensor, Tile, Version
from .timeline import Timeline

__version__ = "0.1.0"


def connect(endpoint=None, name=None, connect_timeout=10.0, token_file=None) -> Session:
    """A session with the cluster at an endpoint. "host:port" (with token_file, or CAIRN_TOKEN_FILE) or "/path"; None:
    CAIRN_ENDPOINT, then this host's. Rank and world of the process are those of the environment, see env()."""
    return Session(endpoint=endpoint, name=name, connect_timeout=connect_timeout, token_file=token_file)


def reader(job, endpoint=None, timeout=60.0):
    """Reads a job beside its training, in a session of its own: cairn.evaluation.Reader."""
    from .evaluation import Reader
    session = connect(endpoint)
    try:
        return Reader(session, job, timeout)
    except BaseException:
        session.close()
        raise


def import_checkpoint(session, path, model, optim, **options):
    """A run that began elsewhere goes on, with its moments and its step: cairn.checkpoint.import_checkpoint."""
    from .checkpoint import import_checkpoint as importing
    return importing(session, path, model, optim, **options)


def _listed() -> str:
    """The names of this package, each with the first sentence about it: what help(cairn) shows."""
    names = {name: one for name, one in globals().items()
             if not name.startswith("_") and name != "annotations" and not isinstance(one, _types.ModuleType)}
    lines = []
    for name, one in sorted(names.items(), key=lambda item: (isinstance(item[1], type), item[0].lower())):
        text = " ".join((_inspect.getdoc(one) or "").split())
        lines.append(f"    {name:<18}" + _re.split("[.:;](?= |$)", text)[0])
    return "\n".join(lines)


__doc__ = f"{__doc__ or ''}\nNames:\n\n{_listed()}\n"
