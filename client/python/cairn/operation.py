"""What is under way, or on loan for a while: operations, units that the library lends, leases."""

from __future__ import annotations

import ctypes
import math
import threading
import time
from typing import TYPE_CHECKING, Any, Iterable, Optional, Sequence, Tuple

from . import _c
from ._call import TIMEOUT_S, check, milliseconds, sliced
from .errors import CairnError, Invalid, Timeout
from .memory import Memory
from .spec import Version

if TYPE_CHECKING:
    from .job import Job


class Operation:
    """Something under way; its buffer is on loan until `wait` returns or raises anything but Timeout."""

    def __init__(self, job: "Job", handle: ctypes.c_void_p, memory: Any):
        self._job = job
        self._handle: Optional[ctypes.c_void_p] = handle
        self._memory = memory  # whatever keeps it
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
            sliced(self._job.name, lambda ms: _c.lib().cairn_wait(self._handle, ms), timeout)
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



def wait_all(begun: Iterable[Any], timeout: float) -> None:
    """Each one, since it has memory on loan; then the first failure."""
    failure: Optional[BaseException] = None
    for one in begun:
        try:
            one.wait(timeout)
        except Exception as error:  # noqa: BLE001 - raised below
            failure = failure or error
    if failure is not None:
        raise failure

class Mapped:
    """Tensors of a unit in the library's memory, lent until close (or the end of a with block), read only: `views` by
    name, dense, of the wire's dtype, there once `wait` has returned. `shapes` by name. Slices and casts of a view must
    not be used after close. `places` by name: (address, bytes); of a card there is nothing else, for only that card
    follows them, and what is written there spoils what others read."""

    def __init__(self, job: "Job", views: Sequence[_c.View], operation: Operation, card: Optional[int] = None):
        self._job, self._first, self._operation, self.card = job, views[0], operation, card
        self._is_open = True
        self.shapes = {view.tensor.decode(): tuple(view.shape[:view.rank]) for view in views}
        self.places = {view.tensor.decode(): self._place(view) for view in views}
        self.views = {} if card is not None else {name: self._memory(*place) for name, place in self.places.items()}

    @staticmethod
    def _place(view: _c.View) -> Tuple[int, int]:
        return view.ptr or 0, math.prod(view.shape[:view.rank]) * _c.DTYPE_BYTES[view.dtype]

    @staticmethod
    def _memory(address: int, nbytes: int) -> memoryview:
        return memoryview((ctypes.c_char * nbytes).from_address(address)).cast("B").toreadonly()

    def wait(self, timeout: float = TIMEOUT_S) -> "Mapped":
        self._operation.wait(timeout)
        return self

    def __enter__(self) -> "Mapped":
        return self.wait()

    def __exit__(self, *_: Any) -> None:
        self.close()

    def close(self, stream: Optional[int] = None) -> None:
        """Gives it back. Invalid if something made of a view still uses it. Twice is once. Of a card: when what is
        queued on `stream`, a stream of it, is done; that is waited for."""
        if not self._is_open:
            return
        try:
            for view in self.views.values():
                view.release()
        except BufferError as error:
            raise Invalid(f"a view of the unit is still in use, give that up first: {error}") from None
        self.views, self._is_open = {}, False
        check(_c.lib().cairn_unmap(self._job._living(), ctypes.byref(self._first), stream))


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
