"""Sessions, jobs and operations: cairn.h with exceptions, context managers and buffers that stay alive on loan.

Times are seconds and finite. Every wait can be interrupted by Ctrl-C. Objects may be used from several
threads; a process that was forked from one with an open session must not use it.
"""

from __future__ import annotations

import atexit
import contextlib
import ctypes
import math
import os
import threading
import time
from typing import Any, Callable, Dict, Iterator, List, Optional, Sequence, Set

from . import _c, _log
from .errors import BadHandle, CairnError, Exists, Invalid, NotFound, RolledBack, Timeout, error
from .memory import Memory
from .records import ClientState, JobInfo, Result, Round, Stats
from .spec import (DTYPES, NONFINITE, REDUCE_GROUPS, Amendment, Box, Group, JobSpec, Tensor, Tile, Version, amend_to_c,
                   box_to_c, number, tensor_from_c, text, to_c, word)

TIMEOUT_S = 60.0
_SLICE_S = 0.5  # a signal is seen after so long
_PASS_S = 0.05  # between two looks whether a pass of a model is over


def milliseconds(seconds: float) -> int:
    if isinstance(seconds, str) or not 0 <= seconds < 2**31 / 1000:
        raise Invalid(f"a timeout of {seconds!r} s; it must be finite and not negative")
    return int(seconds * 1000)


def check(status: int) -> None:
    """Raises what a status means; cairn_error() is of this thread, so this follows the call at once."""
    if status != 0:
        raise error(status, _c.lib().cairn_error().decode(errors="replace"))


_paused = threading.local()  # seen: the call of this thread waited for a worker in a pause
_waits = _log.Waits()


@_c.ON_WAIT
def _on_wait(_: Any, job: bytes, awaited: bytes, __: int) -> bool:
    _paused.seen = True
    _waits.note(job.decode(errors="replace"), awaited.decode(errors="replace"))
    return False  # sliced calls again


def sliced(call: Callable[[int], int], timeout: float) -> None:
    """Calls with at most half a second at a time: TIMEOUT changes nothing, and Ctrl-C is heard between."""
    left_ms = milliseconds(timeout)
    deadline = time.monotonic() + timeout
    while True:
        _paused.seen = False
        status = call(min(left_ms, int(_SLICE_S * 1000)))
        if _paused.seen:  # for a worker that said so: its time does not count
            deadline = time.monotonic() + timeout
        left_ms = max(0, int((deadline - time.monotonic()) * 1000))
        if status != Timeout.status or left_ms == 0:
            return check(status)


def _version_of(version: _c.Version) -> Version:
    return Version(version.generation, version.step)


class Operation:
    """Something under way; its buffer is on loan until `wait` returns or raises anything but Timeout."""

    def __init__(self, job: "Job", handle: ctypes.c_void_p, memory: Optional[Memory]):
        self._job = job
        self._handle: Optional[ctypes.c_void_p] = handle
        self._memory: Optional[Memory] = memory
        self._lock = threading.RLock()  # of the following, and of asking
        self._is_awaited = False
        self._failure: Optional[CairnError] = None
        self.ended: Optional[float] = None  # when that was noticed, in seconds of time.monotonic()
        job._open[handle.value or 0] = self  # not forgotten while the buffer is on loan

    def wait(self, timeout: float = TIMEOUT_S) -> None:
        """Its result. A second wait gives it at once."""
        self._job._session._judge_process()
        with self._lock:
            if self._handle is None:
                return self._tell()
            self._is_awaited = True
        try:
            sliced(lambda ms: _c.lib().cairn_wait(self._handle, ms), timeout)
        except Timeout:
            raise
        except BaseException as failure:
            if not isinstance(failure, KeyboardInterrupt):
                self._failure = failure if isinstance(failure, CairnError) else None
                self._end()
            raise
        else:
            self._end()
        finally:
            self._is_awaited = False

    def done(self) -> bool:
        """Whether it has ended, well or not, and its buffer is back; its result is kept for `wait`. Does not wait; of
        an operation that another thread waits for it says no until that one knows."""
        self._job._session._judge_process()
        with self._lock:
            if self._handle is None or self._is_awaited:
                return self._handle is None
            try:
                check(_c.lib().cairn_wait(self._handle, 0))
            except Timeout:
                return False
            except CairnError as failure:
                self._failure = failure
            self._end()
            return True

    def _tell(self) -> None:
        if self._failure is not None:
            raise self._failure

    def _end(self) -> None:
        with self._lock:
            handle, self._handle, self.ended = self._handle, None, time.monotonic()
            if handle is not None:
                self._job._open.pop(handle.value or 0, None)
            self._memory = None


class Mapped:
    """Tensors of a unit in the library's memory, lent until close (or the end of a with block), read only: `views` by
    name, dense, of the wire's dtype, there once `wait` has returned. `shapes` by name. Slices and casts of a view must
    not be used after close."""

    def __init__(self, job: "Job", views: Sequence[_c.View], operation: Operation):
        self._job, self._first, self._operation = job, views[0], operation
        self.shapes = {view.tensor.decode(): tuple(view.shape[:view.rank]) for view in views}
        self.views = {view.tensor.decode(): self._memory(view) for view in views}

    @staticmethod
    def _memory(view: _c.View) -> memoryview:
        nbytes = math.prod(view.shape[:view.rank]) * _c.DTYPE_BYTES[view.dtype]
        return memoryview((ctypes.c_char * nbytes).from_address(view.ptr or 0)).cast("B").toreadonly()

    def wait(self, timeout: float = TIMEOUT_S) -> "Mapped":
        self._operation.wait(timeout)
        return self

    def __enter__(self) -> "Mapped":
        return self.wait()

    def __exit__(self, *_: Any) -> None:
        self.close()

    def close(self) -> None:
        """Gives it back. Invalid if something made of a view still uses it. Twice is once."""
        if not self.views:
            return
        try:
            for view in self.views.values():
                view.release()
        except BufferError as error:
            raise Invalid(f"a view of the unit is still in use, give that up first: {error}") from None
        self.views = {}
        check(_c.lib().cairn_unmap(self._job._living(), ctypes.byref(self._first), None))


class Lease:
    """A version that the shards keep while it is read, whatever training does; made by Job.lease. In a with block it is
    the version, and ends with the block. It is over `ttl` seconds after it was made or renewed: call `renew` between
    the parts of a longer reading. Nothing renews it by itself, so that a reader that hangs holds no memory."""

    def __init__(self, job: "Job", version: Version, ttl: float):
        self._job, self.version, self.ttl = job, version, ttl
        self._ended = False
        job._leases[version] = job._leases.get(version, 0) + 1  # the library has one of a version

    def renew(self, ttl: Optional[float] = None, timeout: float = TIMEOUT_S) -> None:
        """For ttl (None: as before) seconds from now. VersionGone: it was over, and the version is there no more."""
        self.ttl = self.ttl if ttl is None else ttl
        self._job._take_lease(self.version, self.ttl, timeout)

    def end(self, timeout: float = 5.0) -> None:
        """Twice is once. Timeout: it ends with its time."""
        if self._ended:
            return
        self._ended = True
        self._job._leases[self.version] -= 1
        if self._job._leases[self.version] > 0:
            return  # another one of this version goes on
        del self._job._leases[self.version]
        check(_c.lib().cairn_lease_end(self._job._living(), _c.Version(*self.version), milliseconds(timeout)))

    def __enter__(self) -> Version:
        return self.version

    def __exit__(self, *_: Any) -> None:
        if self._job.closed:
            return  # it has ended with it
        try:
            self.end()
        except CairnError:  # the coordinator is away: it ends with its time
            pass


class Job:
    """A job of a session. Made by Session.open_worker and Session.open_reader."""

    def __init__(self, session: "Session", handle: ctypes.c_void_p, name: str, spec: Optional[JobSpec]):
        self.name, self.spec = name, spec
        self._session = session
        self._handle: Optional[ctypes.c_void_p] = handle
        self._open: Dict[int, Operation] = {}  # by handle
        self._leases: Dict[Version, int] = {}  # how many there are of a version
        self._is_writing = False
        self._rates: Dict[str, float] = {}  # given by group_lr
        self._skips = _log.Skips(name)
        self._loans: List[Memory] = []  # of puts and pushes without an operation of their own
        session._jobs.add(self)
        self._tensors = {t.name: t for t in (spec.tensors if spec is not None else self.tensors())}

    def __enter__(self) -> "Job":
        return self

    def __exit__(self, *_: Any) -> None:
        self.close()

    def close(self) -> None:
        """Leaves the job; a round that is not committed is abandoned for the others. Twice is once."""
        handle, self._handle = self._handle, None
        if handle is not None and self._session._is_mine():
            _c.lib().cairn_job_close(handle)

    @property
    def closed(self) -> bool:
        return self._handle is None

    def _living(self) -> ctypes.c_void_p:
        self._session._judge_process()
        if self._handle is None:
            raise BadHandle(f"job {self.name} is closed here; open it again")
        return self._handle

    def _lend(self, tensor: str, buffer: Any, dtype: str, box: Optional[Box], writable: bool):
        """The memory, the struct for it, and the box: without one, the whole of the tensor."""
        kind = number(DTYPES, "dtype", dtype)
        if box is None:
            if tensor not in self._tensors:
                raise NotFound(f"job {self.name} has no tensor {tensor}")
            box = Box.whole(self._tensors[tensor].shape)
        memory, elems = Memory(buffer, writable), math.prod(box.extent)
        if memory.nbytes != elems * _c.DTYPE_BYTES[kind]:
            raise Invalid(f"tensor {tensor}: the buffer has {memory.nbytes} bytes; {list(box.extent)} of {dtype} has "
                          f"{elems * _c.DTYPE_BYTES[kind]}")
        mem = _c.Mem(ptr=memory.address, dtype=kind)
        if memory.strides is not None:
            if memory.shape != tuple(box.extent):
                raise Invalid(f"tensor {tensor}: a tensor that is not contiguous has the shape {list(box.extent)}; "
                              f"this one has {list(memory.shape)}")
            mem.stride[:len(memory.strides)] = memory.strides
        return memory, mem, box_to_c(box)

    # ---- what it is ----

    def describe(self) -> JobInfo:
        out = _c.JobInfo()
        check(_c.lib().cairn_job_describe(self._living(), ctypes.byref(out)))
        return JobInfo(out.name.decode(), out.rank, out.workers_min, out.clip_norm, out.loss_scale,
                       word(NONFINITE, out.on_nonfinite), _version_of(out.newest), out.initialized,
                       out.stage - 1, out.micro_batches, out.client_state_max,
                       word(REDUCE_GROUPS, out.reduce_groups), out.workers_max)

    def tensors(self) -> List[Tensor]:
        """By name."""
        made: List[Tensor] = []
        out = _c.Tensor()
        while True:
            status = _c.lib().cairn_job_tensor(self._living(), len(made), ctypes.byref(out))
            if status == NotFound.status:
                return made
            check(status)
            made.append(tensor_from_c(out))

    def amend(self, groups: Sequence[Group] = (), freeze: Sequence[str] = (), unfreeze: Sequence[str] = (),
              clip_norm: Optional[float] = None, revision: int = 0, timeout: float = TIMEOUT_S, **more: Any) -> None:
        """Changes the job at the next step boundary, for all its workers, as a whole or not at all: hyper-parameters
        and schedules of groups of these names, groups that are frozen or not any more, the clip norm (0: none).
        `revision`: what a Round said, else Stale; 0: whatever it is. More: freeze_tensors=[names],
        unfreeze_tensors=[names], or {name: group} of tensors that were declared frozen; add=[Tensor with an init];
        ties={name: the tensor that it is from now on}; snapshots=(snapshot_every, snapshot_keep),
        shard_loss=(on_shard_loss, shard_loss_wait); workers=(min, max), or one number. After add, ties or an
        unfreezing of what was declared
        frozen, each handle of the job is Fenced: open it again, with the spec as it was or as it is."""
        made, alive = amend_to_c(Amendment(groups, freeze, unfreeze, clip_norm=clip_norm, **more), revision)
        check(_c.lib().cairn_job_amend(self._living(), ctypes.byref(made), milliseconds(timeout)))
        del alive

    def group_lr(self, group: str, lr: float) -> None:
        """The learning rate of a driven group (schedule=cairn.driven()), from the next commit on until another is
        given. That of rank 0 of the round counts; every worker gives it, before its first commit. Invalid: it is no
        number from 0 to 1e18."""
        check(_c.lib().cairn_group_lr(self._living(), text(group), float(lr)))
        self._rates[group] = float(lr)

    @contextlib.contextmanager
    def pause(self, what: str, at_most: float = 600.0, timeout: float = TIMEOUT_S) -> Iterator[None]:
        """This worker is at work on `what` ("evaluating"), for `at_most` seconds: the other workers wait for it,
        whatever their timeouts are, with a line a minute in their log, and the step's deadline is suspended for it
        alone. After `at_most` the usual rules hold."""
        sliced(lambda ms: _c.lib().cairn_pause(self._living(), text(what), milliseconds(at_most), ms), timeout)
        try:
            yield
        finally:
            if not self.closed:
                with contextlib.suppress(RolledBack):  # which the next round says
                    sliced(lambda ms: _c.lib().cairn_pause_end(self._living(), ms), timeout)

    def tiles(self, tiles: Sequence[Tile], world: int, timeout: float = TIMEOUT_S) -> None:
        """What this worker holds, of ranks 0 to world - 1; a tensor that is not listed it holds whole. Every worker
        calls it after opening the job. Mismatch names the tensor, the ranks, the overlap or the hole."""
        made = (_c.Tile * len(tiles))(*[_c.Tile(tensor=text(tile.tensor), box=box_to_c(tile.box)) for tile in tiles])
        check(_c.lib().cairn_tiles(self._living(), made, len(tiles), world, milliseconds(timeout)))

    # ---- initial state ----

    def put(self, tensor: str, buffer: Any, plane: str = "param", dtype: str = "f32",
            box: Optional[Box] = None) -> bool:
        """Initial state, by rank 0, or with tiles by every worker what it holds; on loan until init_done. False: the
        job has its state already. Between write_begin and write_end: what is written."""
        memory, mem, there = self._lend(tensor, buffer, dtype, box, writable=False)
        self._loans.append(memory)
        try:
            check(_c.lib().cairn_put(self._living(), text(tensor), text(plane), ctypes.byref(there),
                                     ctypes.byref(mem), None))
        except BaseException as failure:
            self._loans.remove(memory)
            if isinstance(failure, Exists) and not self._is_writing:
                return False
            raise
        return True

    def init_done(self, timeout: float = TIMEOUT_S) -> None:
        """Before the first round, by every worker. NotReady names tensors that were not put."""
        sliced(lambda ms: _c.lib().cairn_init_done(self._living(), None, ms), timeout)
        self._loans.clear()

    def write_begin(self, timeout: float = TIMEOUT_S) -> None:
        """Until write_end no round opens, and put gives tensors, or boxes of them, of the planes "param", "exp_avg" or
        "exp_avg_sq"; what is not put stays, an element that was put already is Exists. Exists: somebody else writes."""
        sliced(lambda ms: _c.lib().cairn_write_begin(self._living(), ms), timeout)
        self._is_writing = True

    def write_end(self, timeout: float = TIMEOUT_S) -> Version:
        """Makes it one new version, of the next generation, on all shards alike. EpochChanged: nothing was written,
        begin again. Timeout: call it again."""
        out = _c.Version()
        try:
            sliced(lambda ms: _c.lib().cairn_write_end(self._living(), ms, ctypes.byref(out)), timeout)
        except Timeout:
            raise
        except CairnError:
            self._is_writing = False
            raise
        self._is_writing = False
        self._loans.clear()
        return _version_of(out)

    # ---- a round ----

    def round_begin(self, timeout: float = TIMEOUT_S) -> "RoundHandle":
        """Waits for the next round. Timeout names who is awaited; Fenced, JobLost; Halted: too many rounds in a row
        were skipped (skips_max), and none opens until the job is amended or restored."""
        out = _c.Round()
        sliced(lambda ms: _c.lib().cairn_round_begin(self._living(), ms, ctypes.byref(out)), timeout)
        self._loans.clear()  # a void round's buffers are back
        return RoundHandle(self, out)

    # ---- reading ----

    def fetch(self, version: Version, tensor: str, into: Any, plane: Optional[str] = None, dtype: str = "f32",
              box: Optional[Box] = None) -> Operation:
        """Begins to read a tensor, or a box of it, into a writable buffer, dense in the box. `plane`: "wire" (None
        means it), "param", "exp_avg", "exp_avg_sq". VersionGone if it is no longer kept."""
        memory, mem, there = self._lend(tensor, into, dtype, box, writable=True)
        handle = ctypes.c_void_p()
        check(_c.lib().cairn_fetch(self._living(), _c.Version(*version), text(tensor), text(plane),
                                   ctypes.byref(there), ctypes.byref(mem), ctypes.byref(handle)))
        return Operation(self, handle, memory)

    def prefetch(self, version: Version, units: Sequence[str]) -> None:
        """A hint that these will be mapped soon; begins to gather those that fit into the session's prefetch_units."""
        names = (ctypes.c_char_p * len(units))(*[unit.encode() for unit in units])
        check(_c.lib().cairn_prefetch(self._living(), _c.Version(*version), names, len(units)))

    def map(self, version: Version, unit: str) -> Mapped:
        """Begins to gather the tensors of a unit in the library's memory, and lends it: with job.map(…) as mapped."""
        room = ctypes.c_size_t(max(1, len(self._tensors)))
        views = (_c.View * room.value)()
        views[0].struct_size = ctypes.sizeof(_c.View)
        handle = ctypes.c_void_p()
        check(_c.lib().cairn_map(self._living(), _c.Version(*version), text(unit), views, ctypes.byref(room),
                                 ctypes.byref(handle)))
        return Mapped(self, views[:room.value], Operation(self, handle, None))

    def version_wait(self, at_least: Version = Version(0, 0), timeout: float = TIMEOUT_S) -> Version:
        """A version at least as new; (0, 0) gives the newest at once."""
        out = _c.Version()
        sliced(lambda ms: _c.lib().cairn_version_wait(self._living(), _c.Version(*at_least), ms,
                                                      ctypes.byref(out)), timeout)
        return _version_of(out)

    def client_state(self, timeout: float = TIMEOUT_S) -> "ClientState":
        """What the trainer gave with the commit that made the newest version; b"" if it gave nothing."""
        room = ctypes.create_string_buffer(max(1, self.describe().client_state_max))
        count, version = ctypes.c_size_t(), _c.Version()
        sliced(lambda ms: _c.lib().cairn_client_state(self._living(), room, len(room), ms, ctypes.byref(count),
                                                      ctypes.byref(version)), timeout)
        return ClientState(room.raw[:count.value], _version_of(version))

    def _take_lease(self, version: Version, ttl: float, timeout: float) -> Version:
        out, ttl_ms = _c.Version(), milliseconds(ttl)
        sliced(lambda ms: _c.lib().cairn_lease(self._living(), _c.Version(*version), ttl_ms, ms, ctypes.byref(out)),
               timeout)
        return _version_of(out)

    def lease(self, version: Version = Version(0, 0), ttl: float = 60.0, timeout: float = TIMEOUT_S) -> Lease:
        """Keeps a version, (0, 0) the newest, for ttl seconds: `with job.lease() as version:`. VersionGone: it is not
        there any more; NoMemory: a shard has no room for a copy more; Busy: too many other versions are leased."""
        return Lease(self, self._take_lease(version, ttl, timeout), ttl)

    # ---- the rest ----

    def snapshot(self, wait: bool = True, timeout: float = 600.0) -> str:
        """Its id. With wait: when it is committed, else when it is begun. Training goes on meanwhile."""
        out = (ctypes.c_char * 64)()
        check(_c.lib().cairn_snapshot(self._living(), _c.SNAPSHOT_WAIT if wait else 0, milliseconds(timeout),
                                      ctypes.byref(out)))
        return out.value.decode()

    def stats(self) -> Stats:
        out = _c.Stats()
        check(_c.lib().cairn_job_stats(self._living(), ctypes.byref(out)))
        return Stats(*[getattr(out, name) for name in Stats._fields])


class RoundHandle:
    """An open round: `info` says what to compute; push, micro_end and commit are its calls."""

    def __init__(self, job: Job, round_: _c.Round):
        self._job, self._round = job, round_
        self.info = Round(round_.round, round_.step, round_.epoch, _version_of(round_.version), round_.rank,
                          round_.world, round_.loss_scale, round_.revision, round_.micro_batches, round_.skips,
                          round_.index)

    def push(self, tensor: str, gradient: Any, micro: int = 0, dtype: str = "f32",
             box: Optional[Box] = None) -> None:
        """The gradient, times the loss scale, summed over what its weight counts; on loan until commit or the next
        round_begin. EpochChanged: the round is void."""
        memory, mem, there = self._job._lend(tensor, gradient, dtype, box, writable=False)
        self._job._loans.append(memory)
        try:
            check(_c.lib().cairn_push(self._job._living(), ctypes.byref(self._round), micro, text(tensor),
                                      ctypes.byref(there), ctypes.byref(mem), None))
        except BaseException:
            self._job._loans.remove(memory)
            raise

    def push_watched(self, tensor: str, gradient: Any, micro: int = 0, dtype: str = "f32",
                     box: Optional[Box] = None) -> Operation:
        """As push; the gradient is on loan until the operation has ended, which may be long before the commit."""
        memory, mem, there = self._job._lend(tensor, gradient, dtype, box, writable=False)
        handle = ctypes.c_void_p()
        check(_c.lib().cairn_push(self._job._living(), ctypes.byref(self._round), micro, text(tensor),
                                  ctypes.byref(there), ctypes.byref(mem), ctypes.byref(handle)))
        return Operation(self._job, handle, memory)

    def micro_end(self, micro: int) -> None:
        """Ends a micro-batch: tensors that were not pushed are absent from it, and count as 0."""
        check(_c.lib().cairn_micro_end(self._job._living(), ctypes.byref(self._round), micro))

    def commit(self, weight: Optional[int] = 0, timeout: float = TIMEOUT_S,
               client_state: Optional[bytes] = None) -> Result:
        """Commits with an integer weight and waits for the round's end. 0: one a micro-batch; None: nothing, as all but
        one of the workers that compute parts of one batch. EpochChanged: nothing was applied. Timeout: nothing
        is known; call again to go on waiting. `client_state`: bytes of the trainer's own that belong to the version
        which the round makes, by rank 0 of the round; None: it has none."""
        weight = _c.WEIGHT_NONE if weight is None else weight
        out = _c.Result()
        state, size = (None, 0) if client_state is None else (bytes(client_state), len(client_state))
        sliced(lambda ms: _c.lib().cairn_commit(self._job._living(), ctypes.byref(self._round), weight, state, size,
                                                ms, ctypes.byref(out)), timeout)
        self._job._loans.clear()
        result = Result(out.step, _version_of(out.version), out.grad_norm, out.clip_scale, out.lr, out.applied,
                        out.finite, self._round.loss_scale, out.skips, out.index)
        self._job._skips.note(self.info, result)
        return result

    def abandon(self, timeout: float = TIMEOUT_S) -> None:
        """Gives the round up, uncommitted: it is void for all, and the step is done again. This worker stays in the
        job. Stale: it is committed, or over."""
        sliced(lambda ms: _c.lib().cairn_round_abandon(self._job._living(), ctypes.byref(self._round), ms), timeout)
        self._job._loans.clear()


class Session:
    """A session with a cluster. `endpoint` of the coordinator: "host:port" or "/path"; None: CAIRN_ENDPOINT,
    then cairn/coordinator.sock in $XDG_RUNTIME_DIR, then in /run. Unreachable after `connect_timeout`
    seconds. It outlives the coordinator."""

    def __init__(self, endpoint: Optional[str] = None, name: Optional[str] = None, connect_timeout: float = 10.0,
                 fabric: Optional[str] = None, fabric_device: Optional[str] = None, prefetch_units: int = 0):
        self._pid = os.getpid()
        self._jobs: Set[Job] = set()  # closed ones too: their loans end with the session
        handle = ctypes.c_void_p()
        opts = _c.Opts(endpoint=text(endpoint), name=text(name), connect_timeout_ms=milliseconds(connect_timeout),
                       fabric=text(fabric), fabric_device=text(fabric_device), prefetch_units=prefetch_units,
                       on_wait=_on_wait)
        check(_c.lib().cairn_open(ctypes.byref(opts), ctypes.byref(handle)))
        self._handle: Optional[ctypes.c_void_p] = handle
        self._memory_lock = threading.RLock()  # held while memory of cairn_alloc is written to
        self._is_written_to = self._is_to_close = False  # the latter by a signal handler meanwhile
        _log.opened(self.data_path)
        self._timeline: Any = None  # that reads event_fd
        self._readers: Set[Callable[[], bool]] = set()  # have no parameters on loan from now on; False: not yet
        atexit.register(self.close)  # leaves in words, rather than by a lost connection

    def __enter__(self) -> "Session":
        return self

    def __exit__(self, *_: Any) -> None:
        self.close()

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
                       units, window, wire_dtype, parts, init, init_from, init_prefix, init_nonfinite_ok, rank,
                       workers, world, start_wait, timeout, must_exist
        name           of the job; None: the model's class in lower case
        must_exist     True: NotFound if there is no job of that name, which would otherwise be created, and trained
                       from the beginning; for a program that goes on with one
        resume         "latest": where there is no such job, or it is lost, its newest whole snapshot is
                       restored first, once for all workers that come so; without one it begins anew, or is NotFound
                       with must_exist=True. None: as it is
        stage          0 to 3, see cairn.torch
        units          classes and patterns of module names that are units; None: the blocks of the model
        window         stage 3 only: units in memory at once, the ones that are prefetched included; None: 2
        wire_dtype     of fetched parameters, torch.float32 or torch.bfloat16; None: that of the parameter
        micro_batches  backward passes of a step, at most
        clip_norm, loss_scale, loss_scale_policy, on_nonfinite, init_from, init_prefix, init_nonfinite_ok,
        client_state_max, reduce_groups, skips_max, snapshot_every, snapshot_keep, on_shard_loss, shard_loss_wait
                       state of the job, see JobSpec; with init_from the shards read the initial state themselves
        rank           unique in the job; None: of the environment, see env()
        workers        (min, max), as torchrun's --nnodes MIN:MAX, or n for (n, n): a round opens with at least min
                       workers, and at most max may attach. None: as many as the environment launched, so that a lost
                       worker is waited for until it is back; m.amend(workers=…) or `cairn job amend` changes it while
                       the job trains. n, or None, also goes with a job whose bounds allow so many
        world          how many workers come together, whose ranks are 0 to world - 1 where `parts` are given. None:
                       of the environment; where rank is given, max
        start_wait     seconds that the first round after all were gone waits for `world` workers, so that the first
                       to arrive does not train alone; None: 30. Without effect if min is world
        workers_min    in place of workers: min alone, max is the cluster's
        timeout        seconds, of every wait
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
                    resume: Optional[str] = None) -> Job:
        """Creates the job or attaches to it; Mismatch lists how `spec` differs from the job's. `must_exist`: NotFound
        instead of creating it. `resume`: "latest", see attach."""
        if resume not in (None, "latest"):
            raise Invalid(f"resume is {resume!r}; it is None or 'latest'")
        made, alive = to_c(spec)
        made.open_flags = _c.OPEN_MUST_EXIST * must_exist | _c.OPEN_RESUME * (resume is not None)
        handle = ctypes.c_void_p()
        check(_c.lib().cairn_job_open(self._living(), text(name), ctypes.byref(made), _c.WORKER,
                                      milliseconds(timeout), ctypes.byref(handle)))
        del alive
        return Job(self, handle, name, spec)

    def open_reader(self, name: str, timeout: float = TIMEOUT_S) -> Job:
        """Reads a job that exists; NotFound if there is none."""
        handle = ctypes.c_void_p()
        check(_c.lib().cairn_job_open(self._living(), text(name), None, _c.READER, milliseconds(timeout),
                                      ctypes.byref(handle)))
        return Job(self, handle, name, None)
