"""Sessions, and in job.py and operation.py what they have: cairn.h with exceptions, context managers and buffers that
stay alive on loan.

Times are seconds and finite. Every wait can be interrupted by Ctrl-C. Objects may be used from several
threads; a process that was forked from one with an open session must not use it.
"""

from __future__ import annotations

import atexit
import contextlib
import ctypes
import gc
import os
import sys
import threading
from typing import Any, Callable, Dict, Iterator, List, Optional, Set, Tuple

from . import _c, _log
from ._call import TIMEOUT_S, check, milliseconds, on_wait
from .errors import BadHandle, Busy, Difference, Invalid, Mismatch, NoMemory, Unsupported
from .job import Job
from .spec import JobSpec, text, to_c

_PASS_S = 0.05  # between two looks whether a pass of a model is over


def _card_in_use() -> int:
    """The card that torch computes on by now, as cairn_mem.device has it; 0: none."""
    torch = sys.modules.get("torch")
    if torch is None or not torch.cuda.is_initialized():
        return 0
    return _c.gpu(torch.cuda.current_device())


def _differences() -> Tuple[Difference, ...]:
    """Of this thread's last error."""
    made: List[Difference] = []
    out = _c.Difference()
    while _c.lib().cairn_error_difference(len(made), ctypes.byref(out)) == 0:
        key, value, tensor, field, there = (word.decode(errors="replace") if word is not None else None
                                            for word in (out.key, out.value, out.tensor, out.field, out.there))
        made.append(Difference(out.text.decode(errors="replace"), key, value, out.change, tensor, field, there))
    return tuple(made)


class Session:
    """A session with a cluster. `endpoint` of the coordinator: "host:port" or "/path", several with commas; None:
    CAIRN_ENDPOINT, then cairn/coordinator.sock in $XDG_RUNTIME_DIR, then in /run. Unreachable after `connect_timeout`
    seconds. "host:port" takes a token: cairn-token in $CREDENTIALS_DIRECTORY, if there is one, then `token_file`, then
    CAIRN_TOKEN_FILE. It outlives the coordinator."""

    def __init__(self, endpoint: Optional[str] = None, name: Optional[str] = None, connect_timeout: float = 10.0,
                 fabric: Optional[str] = None, fabric_device: Optional[str] = None, prefetch_units: int = 0,
                 token_file: Optional[str] = None):
        self._pid = os.getpid()
        self._jobs: Set[Job] = set()  # closed ones too: their loans end with the session
        handle = ctypes.c_void_p()
        opts = _c.Opts(endpoint=text(endpoint), name=text(name), connect_timeout_ms=milliseconds(connect_timeout),
                       fabric=text(fabric), fabric_device=text(fabric_device), prefetch_units=prefetch_units,
                       on_wait=on_wait, token_file=text(token_file))
        opts.device = _card_in_use()
        status = _c.lib().cairn_open(ctypes.byref(opts), ctypes.byref(handle))
        if opts.device and status == Unsupported.status:  # it shows nothing to other processes: all goes as before
            opts.device = 0
            status = _c.lib().cairn_open(ctypes.byref(opts), ctypes.byref(handle))
        check(status)
        self._handle: Optional[ctypes.c_void_p] = handle
        self._memory_lock = threading.RLock()  # held while memory of cairn_alloc is written to
        self._is_written_to = self._is_to_close = False  # the latter by a signal handler meanwhile
        _log.opened(self.data_path)
        self._timeline: Any = None  # that reads event_fd
        self._readers: Set[Callable[[], bool]] = set()  # use no memory of the library from now on; False: not yet
        self._sharers: Set[Any] = set()  # gradients that have memory of cairn_alloc
        self._cards: Dict[int, bool] = {}  # by number: whether the library works on it
        self._full: Set[int] = set()  # cards that had no room when they were asked last
        atexit.register(self.close)  # leaves in words, rather than by a lost connection

    def __enter__(self) -> "Session":
        return self

    def __exit__(self, *_: Any) -> None:
        self.close()

    def __reduce_ex__(self, protocol: Any) -> Any:
        raise Invalid("a session is this process's, and is neither copied nor pickled: another process connects by "
                      "itself")

    @property
    def data_path(self) -> str:
        """How bulk data travels: the fabric, its devices and addresses, and who chose them."""
        return (_c.lib().cairn_data_path(self._handle) or b"").decode()

    def _is_mine(self) -> bool:
        return self._pid == os.getpid()

    def _judge_process(self) -> None:
        """Before any lock: a thread that is not here any more may have held it when this process was forked."""
        if not self._is_mine():
            raise BadHandle("the session was opened before this process was forked, and is that of the other one: one "
                            "that needs its own is started anew, not forked (multiprocessing's \"spawn\"), and "
                            "connects there")

    @contextlib.contextmanager
    def _writes(self) -> Iterator[bool]:
        """Until its end memory of cairn_alloc stays, if it gives True: the session is open."""
        if not self._is_mine():
            yield False
            return
        with self._memory_lock:
            self._is_written_to = True
            try:
                yield not self.closed
            finally:
                self._is_written_to = False
        if self._is_to_close:
            self.close()

    @property
    def closed(self) -> bool:
        """Here: closed, or opened before a fork."""
        return self._handle is None or not self._is_mine()

    def _living(self) -> ctypes.c_void_p:
        self._judge_process()
        if self._handle is None:
            raise BadHandle("the session is closed; connect again")
        return self._handle

    def detach_memory(self, timeout: float = TIMEOUT_S) -> None:
        """Lets go of all memory that shards of this host show this process, and of its own that they map on cards,
        until attach_memory: a process that maps memory of a card of another one cannot be restored from a checkpoint
        (cuda-checkpoint). Between two steps, when nothing is under way; Busy says what is. What needs those shards
        waits meanwhile."""
        with self._memory_lock:
            if not all([ended() for ended in list(self._readers)]):
                raise Busy("a forward or backward pass is under way, which reads parameters that shards lend: between "
                           "two steps memory can be let go of")
            gc.collect()  # loans whose tensors are part of cycles
            try:
                for sharer in list(self._sharers):
                    sharer.leave_cards()
                check(_c.lib().cairn_detach_memory(self._living(), milliseconds(timeout)))
            except BaseException:
                self._share_again()
                raise

    def attach_memory(self, timeout: float = TIMEOUT_S) -> None:
        """Takes it again. Timeout: it goes on in the background, call it again to wait."""
        check(_c.lib().cairn_attach_memory(self._living(), milliseconds(timeout)))
        self._share_again()

    def _share_again(self) -> None:
        for sharer in list(self._sharers):
            sharer.share_again()

    def _takes(self, device: Any) -> bool:
        """Whether memory of that torch device is pushed from and fetched into as it is; other goes through the host."""
        if device.type != "cuda":
            return bool(device.type == "cpu")
        if device.index not in self._cards:
            return self._has_card(device.index)
        return self._cards[device.index]

    def _has_card(self, number: int) -> bool:
        """Asks by a byte, which takes 2 MiB there. Of a card without so much it is asked again."""
        out = ctypes.c_void_p()
        try:
            check(_c.lib().cairn_alloc(self._living(), 1, _c.gpu(number), ctypes.byref(out)))
        except Unsupported as why:
            _log.without_card(number, str(why))
            self._cards[number] = False
            return False
        except NoMemory as why:
            if number not in self._full:  # it is asked for each tensor
                _log.without_card(number, str(why))
            self._full.add(number)
            return False
        check(_c.lib().cairn_free(self._living(), out))
        self._full.discard(number)
        self._cards[number] = True
        return True

    def close(self) -> None:
        """Closes its jobs too and ends what is under way; about a second at most. Twice is once."""
        if not self._is_mine():
            return
        with self._memory_lock:
            if self._is_written_to:  # this is a signal handler, amid a copy of its own thread: behind it
                self._is_to_close = True
                return
            if not all([ended() for ended in list(self._readers)]):
                return self._close_later(self.close)
            handle, self._handle = self._handle, None
        if handle is None:
            return
        atexit.unregister(self.close)
        jobs = list(self._jobs)
        for job in jobs:
            job._handle = None
        _c.lib().cairn_close(handle)
        for job in jobs:  # all loans are returned
            job._open.clear()
            job._loans.clear()

    @staticmethod
    def _close_later(close: Callable[[], None]) -> None:
        """This is a signal handler, or another thread, amid a pass over memory that is on loan: tried again."""
        again = threading.Timer(_PASS_S, close)
        again.daemon = True
        again.start()

    @property
    def event_fd(self) -> int:
        """Readable when an operation completed; read 8 bytes to clear it. Borrowed."""
        return _c.lib().cairn_event_fd(self._living())

    def attach(self, model: Any, optim: Any = None, **options: Any) -> Any:
        """Makes the servers hold a torch model's parameters and run its optimizer; returns cairn.torch.AttachedModel.

        optim          AdamW, Adam or SGD of this package, or a torch optimizer, by from_torch if it has a scheduler.
                       None: nothing is trained here, see cairn.torch.ReadModel, which takes the options name, stage,
                       units, window, wire_dtype, parts, init, init_from, init_prefix, init_nonfinite_ok,
                       init_extra_ok, rank, workers, world, start_wait, timeout, must_exist
        name           of the job; None: the model's class in lower case
        must_exist     True: NotFound if there is no job of that name, which would otherwise be created, and trained
                       from the beginning; for a program that goes on with one
        must_not_exist True: Exists where the job has taken a step, or is lost; for a program that begins one
        takeover       True: the rank is taken from another process that has it and lives, which is Fenced. Without it
                       this one waits until that process is gone, for lease.timeout at most, and is PlaceTaken then;
                       where the launcher started this one anew (the same run id, a higher restart count) it has it
        resume         "latest": where there is no such job, or it is lost, its newest whole snapshot is
                       restored first, once for all workers that come so; without one it begins anew, or is NotFound
                       with must_exist=True. None: as it is
        stage          0 to 3, see cairn.torch
        units          classes and patterns of module names that are units; None: the blocks of the model
        window         stage 3 only: units in memory at once, the ones that are prefetched included; None: 2
        wire_dtype     of fetched parameters, torch.float32 or torch.bfloat16; None: that of the parameter
        micro_batches  backward passes of a step, at most
        init_from, init_prefix, and each field of JobSpec that is not here
                       state of the job, see JobSpec; with init_from the shards read the initial state themselves
        rank           unique in the job; None: of the environment, see env()
        workers        (min, max), as torchrun's --nnodes MIN:MAX, or n for (n, n): a round opens with at least min
                       workers, and at most max may attach. None: as many as the environment launched, so that a lost
                       worker is waited for until it is back; m.amend(workers=…) or `cairn job amend` changes it while
                       the job trains. n, or None, also goes with a job whose bounds allow so many
        world          how many workers come together, whose ranks are 0 to world - 1 where `parts` are given. None:
                       of the environment; where rank is given, max
        start_wait     seconds that the first round after all were gone waits for `world` workers, so that the first
                       to arrive does not train alone; None: 30. Without effect if min is world. After a restore those
                       of the last round are waited for instead
        first_step, steps_missed
                       a run that began elsewhere goes on at that step; {parameter: how many of these steps were no
                       update of it}, 0 where it is not named
        workers_min    in place of workers: min alone, max is the cluster's
        timeout        seconds, of every wait
        buffers_every  rank 0 writes the buffers that a forward pass has changed, integers to the bit, after each step
                       that is a multiple of it or of snapshot_every, and before m.snapshot() and m.close(); for
                       readers, snapshots, exports and restores. 0: never. None: where the model has running statistics
                       1, or 10 with more than 4 million parameters, else 0
        blobs          {name: bytes or uint8 tensor}: opaque bytes that the servers keep, save and give back as they
                       are; their lengths are part of the job. m.blob(name), m.write({name: bytes})
        init           {name or pattern: Init} of parameters and buffers that the shards make, the first that matches.
                       The model may be on torch's meta device: its values are then those of the job that is there,
                       of init_from, or these; it gets parameters of the host, in stage 3 never all of them
        parts          {parameter name: Part}: parameters that are parts of tensors (tensor parallelism); every worker
                       says which ones it has, the others it has whole
        mapped_gradients
                       gradients are copied once, by autograd's hook, into memory that the shards of this host map
                       (Ψ bytes, twice with several micro_batches; in stage 3 those of `window` units, and what finds
                       no room there stays where it is), instead of by the library later. None: where it
                       helps, so not in stages 0 and 1 with several micro_batches, and given back after a step that
                       shared nothing; False: never; True: or Invalid
        mapped_parameters
                       stage 3: within a step a unit's parameters are where the shards of this host published them, read
                       only, instead of copies. None: where all of a unit is on this host, and nothing in it is known to
                       write to parameters (max_norm) or to be compiled; False: never; True: or Invalid
        counts         False for all but one of the workers that compute one batch together: the batch counts once,
                       and of parameters that all have whole, the gradient of the one that counts is taken

        Rank 0 brings the initial state, if the job has none. Mismatch lists how this model and optimizer differ from
        a job that exists, and the call of m.amend where that makes the one the other; what this version cannot do is
        refused with Unsupported."""
        from . import torch as torch_part
        return torch_part.attach(self, model, optim, **options)

    def open_worker(self, name: str, spec: JobSpec, timeout: float = TIMEOUT_S, must_exist: bool = False,
                    resume: Optional[str] = None, must_not_exist: bool = False, takeover: bool = False) -> Job:
        """Creates the job or attaches to it; Mismatch lists how `spec` differs from the job's. `must_exist`: NotFound
        instead of creating it. `resume`: "latest"; `must_not_exist`, `takeover`: see attach."""
        if resume not in (None, "latest"):
            raise Invalid(f"resume is {resume!r}; it is None or 'latest'")
        made, alive = to_c(spec)
        made.open_flags = (_c.OPEN_MUST_EXIST * must_exist | _c.OPEN_RESUME * (resume is not None)
                           | _c.OPEN_MUST_NOT_EXIST * must_not_exist | _c.OPEN_TAKEOVER * takeover)
        handle = ctypes.c_void_p()
        try:
            check(_c.lib().cairn_job_open(self._living(), text(name), ctypes.byref(made), _c.WORKER,
                                          milliseconds(timeout), ctypes.byref(handle)))
        except Mismatch as mismatch:
            mismatch.differences = _differences()
            raise
        del alive
        job = Job(self, handle, name, spec)
        there = job.describe()
        if not there.initialized:
            _log.is_new(name)
        elif there.found_step is not None:
            _log.goes_on(name, there.found_step, there.made_by, must_exist or takeover or resume is not None)
        return job

    def open_reader(self, name: str, timeout: float = TIMEOUT_S) -> Job:
        """Reads a job that exists; NotFound if there is none."""
        handle = ctypes.c_void_p()
        check(_c.lib().cairn_job_open(self._living(), text(name), None, _c.READER, milliseconds(timeout),
                                      ctypes.byref(handle)))
        return Job(self, handle, name, None)
