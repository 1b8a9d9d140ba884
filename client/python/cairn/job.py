"""A job of a session and its rounds: what a worker or a reader calls."""

from __future__ import annotations

import contextlib
import ctypes
import math
import operator
from typing import TYPE_CHECKING, Any, Dict, Iterator, List, NamedTuple, Optional, Sequence

from . import _c, _log
from ._call import TIMEOUT_S, check, milliseconds, sliced, version_of
from .errors import BadHandle, CairnError, Exists, Invalid, NotFound, RolledBack, Timeout
from .memory import Memory
from .operation import Lease, Mapped, Operation
from .records import ClientState, JobInfo, Result, Round, Stats
from .spec import (DTYPES, NONFINITE, REDUCE_GROUPS, Amendment, Box, Group, JobSpec, Tensor, Tile, Version, amend_to_c,
                   box_to_c, number, tensor_from_c, text, word)

if TYPE_CHECKING:
    from .session import Session


WEIGHT_MAX = 2 ** 53  # so that sums over workers are whole


class Piece(NamedTuple):
    """Dense memory of the host for a tensor, or for a box of it."""

    tensor: str
    address: int
    nbytes: int
    dtype: str = "f32"
    box: Optional[Box] = None


def _parts(pieces: Sequence[Piece]) -> Any:
    parts, part_size, mem_size = (_c.Part * len(pieces))(), ctypes.sizeof(_c.Part), ctypes.sizeof(_c.Mem)
    kinds = {dtype: number(DTYPES, "dtype", dtype) for dtype in {piece.dtype for piece in pieces}}
    for part, piece in zip(parts, pieces):
        part.struct_size, part.tensor = part_size, piece.tensor.encode()
        mem = part.mem
        mem.struct_size, mem.ptr, mem.dtype, mem.bytes = mem_size, piece.address, kinds[piece.dtype], piece.nbytes
        if piece.box is not None:
            part.box = ctypes.pointer(box_to_c(piece.box))
    return parts


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
        self._ends, self._surplus = _log.Ends(name), _log.Surplus(name)
        self._loans: List[Memory] = []  # of puts and pushes without an operation of their own
        session._jobs.add(self)
        self._tensors = {t.name: t for t in (spec.tensors if spec is not None else self.tensors())}

    def __enter__(self) -> "Job":
        return self

    def __exit__(self, *_: Any) -> None:
        self.close()

    def __reduce_ex__(self, protocol: Any) -> Any:
        raise Invalid(f"an open job is this process's, and is neither copied nor pickled: another process opens "
                      f"{self.name} by itself")

    def __repr__(self) -> str:
        return f"<cairn.Job {self.name}{', closed' if self.closed else ''}>"

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
            if tensor not in self._tensors:  # an amendment may have added it, since the spec was written
                self._tensors = {t.name: t for t in self.tensors()}
            if tensor not in self._tensors:
                raise NotFound(f"job {self.name} has no tensor {tensor}")
            box = Box.whole(self._tensors[tensor].shape)
        memory, elems = Memory(buffer, writable), math.prod(box.extent)
        if memory.nbytes != elems * _c.DTYPE_BYTES[kind]:
            raise Invalid(f"tensor {tensor}: the buffer has {memory.nbytes} bytes; {list(box.extent)} of {dtype} has "
                          f"{elems * _c.DTYPE_BYTES[kind]}")
        mem = _c.Mem(ptr=memory.address, dtype=kind, device=memory.device, stream=memory.stream,
                     bytes=memory.span)
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
                       word(NONFINITE, out.on_nonfinite), version_of(out.newest), out.initialized,
                       out.stage - _c.stage(0), out.micro_batches, out.client_state_max,
                       word(REDUCE_GROUPS, out.reduce_groups), out.workers_max, out.global_batch, out.seed,
                       out.revision, out.found_step if out.found else None, (out.made_by or b"").decode())

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

    def has_plane(self, tensor: str, plane: str) -> bool:
        """Whether the servers keep it of the tensor: "ema" only in a group with an average."""
        out = ctypes.c_bool()
        check(_c.lib().cairn_job_has_plane(self._living(), text(tensor), text(plane), ctypes.byref(out)))
        return out.value

    def amend(self, groups: Sequence[Group] = (), freeze: Sequence[str] = (), unfreeze: Sequence[str] = (),
              clip_norm: Optional[float] = None, revision: int = 0, timeout: float = TIMEOUT_S, **more: Any) -> None:
        """Changes the job at the next step boundary, for all its workers, as a whole or not at all: hyper-parameters
        and schedules of groups of these names, groups that are frozen or not any more, the clip norm (0: none).
        `revision`: what a Round said, else Stale; 0: whatever it is. More: freeze_tensors=[names],
        unfreeze_tensors=[names], or {name: group} of tensors that were declared frozen; add=[Tensor with an init];
        ties={name: the tensor that it is from now on}; snapshots=(snapshot_every, snapshot_keep),
        shard_loss=(on_shard_loss, shard_loss_wait), worker_loss=(on_worker_loss, worker_loss_wait);
        snapshot_rules={name of JobSpec, snapshot_keep_every, say: value}, the others at their default;
        workers=(min, max), or one number; settings={"stage": 3, "default.lr": 1e-4, "wire": "bf16"}: fields of the
        spec by their names in cairn.h. After add, ties, an unfreezing of what was declared frozen, and settings that
        cairn.h says it of (stage, micro_batches, wire, …), each handle of the job is Reopen: open it again, with the
        spec as it was or as it is."""
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
        sliced(self.name, lambda ms: _c.lib().cairn_pause(self._living(), text(what), milliseconds(at_most), ms),
               timeout)
        try:
            yield
        finally:
            if not self.closed:
                with contextlib.suppress(RolledBack):  # which the next round says
                    sliced(self.name, lambda ms: _c.lib().cairn_pause_end(self._living(), ms), timeout)

    def tiles(self, tiles: Sequence[Tile], world: int, timeout: float = TIMEOUT_S) -> None:
        """What this worker holds, of ranks 0 to world - 1; a tensor that is not listed it holds whole. Every worker
        calls it after opening the job. Mismatch names the tensor, the ranks, the overlap or the hole."""
        made = (_c.Tile * len(tiles))(*[_c.Tile(tensor=text(tile.tensor), box=box_to_c(tile.box)) for tile in tiles])
        check(_c.lib().cairn_tiles(self._living(), made, len(tiles), world, milliseconds(timeout)))

    # ---- initial state ----

    def put(self, tensor: str, buffer: Any, plane: str = "param", dtype: str = "f32",
            box: Optional[Box] = None) -> bool:
        """Initial state, by rank 0, or with tiles by every worker what it holds; on loan until init_done. Rank 0 may
        put whole "exp_avg" and "exp_avg_sq", too. False: the job has its state already. Between write_begin and
        write_end: what is written."""
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

    def putting(self, tensor: str, buffer: Any, plane: str = "param") -> Operation:
        """Initial state of a whole tensor in f32, by rank 0: its buffer is back when the operation has ended. Planes
        "exp_avg" and "exp_avg_sq" that nobody puts are 0."""
        memory, mem, there = self._lend(tensor, buffer, "f32", None, writable=False)
        handle = ctypes.c_void_p()
        check(_c.lib().cairn_put(self._living(), text(tensor), text(plane), ctypes.byref(there), ctypes.byref(mem),
                                 ctypes.byref(handle)))
        return Operation(self, handle, memory)

    def init_done(self, timeout: float = TIMEOUT_S) -> None:
        """Before the first round, by every worker. NotReady names tensors that were not put."""
        sliced(self.name, lambda ms: _c.lib().cairn_init_done(self._living(), None, ms), timeout)
        self._loans.clear()

    def write_begin(self, timeout: float = TIMEOUT_S) -> None:
        """Until write_end no round opens, and put gives tensors, or boxes of them, of the planes "param", "exp_avg" or
        "exp_avg_sq"; what is not put stays, an element that was put already is Exists. Exists: somebody else writes."""
        sliced(self.name, lambda ms: _c.lib().cairn_write_begin(self._living(), ms), timeout)
        self._is_writing = True

    def write_end(self, timeout: float = TIMEOUT_S) -> Version:
        """Makes it one new version, of the next generation, on all shards alike. EpochChanged: nothing was written,
        begin again. Timeout: call it again."""
        out = _c.Version()
        try:
            sliced(self.name, lambda ms: _c.lib().cairn_write_end(self._living(), ms, ctypes.byref(out)), timeout)
        except Timeout:
            raise
        except CairnError:
            self._is_writing = False
            raise
        self._is_writing = False
        self._loans.clear()
        return version_of(out)

    # ---- a round ----

    def round_begin(self, timeout: float = TIMEOUT_S) -> "RoundHandle":
        """Waits for the next round. Timeout names who is awaited; Fenced, JobLost; Halted: too many rounds in a row
        were skipped (skips_max), and none opens until the job is amended, written or restored; or with on_nonfinite
        "fail" the last update left what is not finite, and none opens until that is written or restored."""
        out = _c.Round()
        sliced(self.name, lambda ms: _c.lib().cairn_round_begin(self._living(), ms, ctypes.byref(out)), timeout)
        self._loans.clear()  # a void round's buffers are back
        opened = RoundHandle(self, out)
        self._surplus.note(opened.info)
        return opened

    # ---- reading ----

    def fetch(self, version: Version, tensor: str, into: Any, plane: Optional[str] = None, dtype: str = "f32",
              box: Optional[Box] = None) -> Operation:
        """Begins to read a tensor, or a box of it, into a writable buffer, dense in the box. `plane`: "wire" (None
        means it), and at the newest version "param", "exp_avg", "exp_avg_sq", "ema". VersionGone if it is no longer
        kept."""
        memory, mem, there = self._lend(tensor, into, dtype, box, writable=True)
        handle = ctypes.c_void_p()
        check(_c.lib().cairn_fetch(self._living(), _c.Version(*version), text(tensor), text(plane),
                                   ctypes.byref(there), ctypes.byref(mem), ctypes.byref(handle)))
        return Operation(self, handle, memory)

    def fetch_many(self, version: Version, pieces: Sequence[Piece], plane: Optional[str] = None,
                   owner: Any = None) -> Operation:
        """As fetch of each, as one operation; all of them are judged before anything is asked for. `owner` has the
        memory, and is kept until the operation has ended."""
        made, handle = ctypes.c_void_p(), ctypes.c_void_p()
        check(_c.lib().cairn_fetch_list(self._living(), text(plane), _parts(pieces), len(pieces), ctypes.byref(made)))
        try:
            check(_c.lib().cairn_fetch_many(made, _c.Version(*version), ctypes.byref(handle)))
        finally:
            _c.lib().cairn_list_close(made)
        return Operation(self, handle, owner)

    def prefetch(self, version: Version, units: Sequence[str]) -> None:
        """A hint that these will be mapped soon; begins to gather those that fit into the session's prefetch_units."""
        names = (ctypes.c_char_p * len(units))(*[unit.encode() for unit in units])
        check(_c.lib().cairn_prefetch(self._living(), _c.Version(*version), names, len(units)))

    def map(self, version: Version, unit: str, card: Optional[int] = None) -> Mapped:
        """Begins to gather the tensors of a unit in the library's memory, and lends it: with job.map(…) as mapped.
        `card`: in memory of that NVIDIA card; of the views are then the addresses there alone."""
        room = ctypes.c_size_t(max(1, len(self._tensors)))
        views = (_c.View * room.value)()
        views[0].struct_size = ctypes.sizeof(_c.View)
        handle = ctypes.c_void_p()
        device = 0 if card is None else _c.gpu(card)
        check(_c.lib().cairn_map_device(self._living(), _c.Version(*version), text(unit), device, views,
                                        ctypes.byref(room), ctypes.byref(handle)))
        return Mapped(self, views[:room.value], Operation(self, handle, None), card)

    def version_wait(self, at_least: Version = Version(0, 0), timeout: float = TIMEOUT_S) -> Version:
        """A version at least as new; (0, 0) gives the newest at once."""
        out = _c.Version()
        sliced(self.name, lambda ms: _c.lib().cairn_version_wait(self._living(), _c.Version(*at_least), ms,
               ctypes.byref(out)), timeout)
        return version_of(out)

    def client_state(self, timeout: float = TIMEOUT_S) -> "ClientState":
        """What the trainer gave with the commit that made the newest version; b"" if it gave nothing."""
        room = ctypes.create_string_buffer(max(1, self.describe().client_state_max))
        count, version = ctypes.c_size_t(), _c.Version()
        sliced(self.name, lambda ms: _c.lib().cairn_client_state(self._living(), room, len(room), ms,
               ctypes.byref(count), ctypes.byref(version)), timeout)
        return ClientState(room.raw[:count.value], version_of(version))

    def _take_lease(self, version: Version, ttl: float, timeout: float) -> Version:
        out, ttl_ms = _c.Version(), milliseconds(ttl)
        sliced(self.name, lambda ms: _c.lib().cairn_lease(self._living(), _c.Version(*version), ttl_ms, ms,
               ctypes.byref(out)), timeout)
        return version_of(out)

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


def weight_to_c(weight: Any) -> int:
    """None is 0 there, one a micro-batch, and 0 is CAIRN_WEIGHT_NONE."""
    if weight is None:
        return 0
    try:
        given = -1 if isinstance(weight, bool) else operator.index(weight)
    except TypeError:
        given = -1
    if not 0 <= given <= WEIGHT_MAX:
        raise Invalid(f"weight is {weight!r}; it is a whole number from 0 to 2^{WEIGHT_MAX.bit_length() - 1}, such as "
                      "a count of tokens: int(weight); 0 counts nothing, None one a backward pass")
    return given or _c.WEIGHT_NONE


class RoundHandle:
    """An open round: `info` says what to compute; push, micro_end and commit are its calls."""

    def __init__(self, job: Job, round_: _c.Round):
        self._job, self._round = job, round_
        own = range(round_.micro_batches)
        if round_.global_batch:
            own = range(round_.rank, round_.global_batch, round_.world)
        self.info = Round(round_.round, round_.step, round_.epoch, version_of(round_.version), round_.rank,
                          round_.world, round_.loss_scale, round_.revision, own, round_.skips, round_.index,
                          round_.seed, round_.global_batch)

    def push(self, tensor: str, gradient: Any, micro: int = 0, dtype: str = "f32",
             box: Optional[Box] = None) -> None:
        """The gradient, times the loss scale, summed over what its weight counts; on loan until commit or the next
        round_begin. `micro`: one of info.micro_batches, in their order. EpochChanged: the round is void."""
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

    def push_many(self, pieces: Sequence[Piece], micro: int = 0, owner: Any = None) -> Operation:
        """As push_watched of each, as one operation; all of them are judged before anything is sent. `owner` has the
        memory, and is kept until the operation has ended."""
        made, handle = ctypes.c_void_p(), ctypes.c_void_p()
        living = self._job._living()
        check(_c.lib().cairn_push_list(living, _parts(pieces), len(pieces), ctypes.byref(made)))
        try:
            check(_c.lib().cairn_push_many(made, ctypes.byref(self._round), micro, ctypes.byref(handle)))
        finally:
            _c.lib().cairn_list_close(made)
        return Operation(self._job, handle, owner)

    def micro_end(self, micro: int) -> None:
        """Ends a micro-batch: tensors that were not pushed are absent from it, and count as 0."""
        check(_c.lib().cairn_micro_end(self._job._living(), ctypes.byref(self._round), micro))

    def commit(self, weight: Optional[int] = None, timeout: float = TIMEOUT_S,
               client_state: Optional[bytes] = None) -> Result:
        """Commits with an integer weight and waits for the round's end. None: one a micro-batch; 0: nothing, as all but
        one of the workers that compute parts of one batch. EpochChanged: nothing was applied. Timeout: nothing
        is known; call again to go on waiting. `client_state`: bytes of the trainer's own that belong to the version
        which the round makes, by rank 0 of the round; None: it has none."""
        weight = weight_to_c(weight)
        out = _c.Result()
        state, size = (None, 0) if client_state is None else (bytes(client_state), len(client_state))
        sliced(self._job.name, lambda ms: _c.lib().cairn_commit(self._job._living(), ctypes.byref(self._round),
               weight, state, size, ms, ctypes.byref(out)), timeout)
        self._job._loans.clear()
        result = Result(out.step, version_of(out.version), out.grad_norm, out.clip_scale, out.lr, out.applied,
                        out.finite, self._round.loss_scale, out.skips, out.index, out.nonfinite,
                        out.nonfinite_tensors.decode(errors="replace"))
        self._job._ends.note(self.info, result)
        return result

    def abandon(self, timeout: float = TIMEOUT_S) -> None:
        """Gives the round up, uncommitted: it is void for all, and the step is done again. This worker stays in the
        job. Stale: it is committed, or over."""
        sliced(self._job.name, lambda ms: _c.lib().cairn_round_abandon(self._job._living(), ctypes.byref(self._round),
               ms), timeout)
        self._job._loans.clear()
