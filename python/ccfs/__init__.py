"""Streams of ccfs, a file system that keeps every application's updates in order, also across a crash.

A stream is a sequence of updates of which a crash keeps a prefix. The calling thread is in one stream per volume; threads and
processes that it starts inherit it. Who never chose is in the default stream.

    with ccfs.stream(path) as stream:
        ...             # updates below path keep their order, and wait for nobody else's
        stream.sync()   # they are durable

Functions take a path of the volume (one that does not exist stands for its directory), or an open file or its descriptor. On
other file systems they raise OSError with ENOTSUP and change nothing; `stream` does not even raise: see there.
"""

from __future__ import annotations

import errno
import fcntl
import os
import struct
from contextlib import contextmanager
from dataclasses import dataclass
from functools import lru_cache
from types import TracebackType
from typing import Callable, Iterator, Optional, Protocol, Sequence, Tuple, Type, Union, cast

__all__ = [
    "DEFAULT",
    "Cancelled",
    "StreamInfo",
    "abort_atomic",
    "atomic",
    "begin_atomic",
    "commit_atomic",
    "enter_atomic",
    "fbarrier",
    "fdatabarrier",
    "find_stream",
    "get_stream",
    "is_supported",
    "leave_stream",
    "make_atomic",
    "name_stream",
    "new_stream",
    "open_atomic",
    "set_stream",
    "stream",
    "sync",
    "sync_volume",
    "syncv",
]


class _HasFileno(Protocol):
    def fileno(self) -> int: ...


Where = Union[str, bytes, "os.PathLike[str]", "os.PathLike[bytes]", int, _HasFileno]

DEFAULT = 1
"""The stream of threads that never entered one."""

# The ioctls of ccfs.h; a test of the package compares the numbers.
_VERSION = 1
_ARG = struct.Struct("=IIQ")
_SET, _GET, _NEW, _SYNC = (0xC010CC80, 0xC010CC81, 0xC010CC82, 0xC010CC83)
_NAME, _FIND = (0xC050CC86, 0xC050CC87)
_NAME_ARG = struct.Struct("=IIQ64s")
_SYNC_VOLUME = 0xC008CCA3
_SYNC_VOLUME_ARG = struct.Struct("=II")
_BARRIER = 0xC008CCA0
_BARRIER_ARG = struct.Struct("=II")
_BARRIER_DATA = 1
_GROUP_BEGIN, _GROUP_COMMIT, _GROUP_ABORT, _GROUP_ENTER = (0xC018CC8A, 0xC018CC8B, 0xC018CC8C, 0xC018CC8D)
_GROUP_ARG = struct.Struct("=IIQQ")
_ORDERED = 1
_ATOMIC, _SYNCV = (0xC018CCA1, 0xC808CCA2)
_ATOMIC_ARG = struct.Struct("=IIQQ")
_ATOMIC_OPEN = 1
_SYNCV_MAX = 256
_SYNCV_ARG = struct.Struct("=II256Q")
_IGNORE_FSYNC = 1
_CHOSEN = 1 << 30
_KEEP_FLAGS = 1 << 31
_POLICY = 0


@dataclass(frozen=True)
class StreamInfo:
    """A stream as a thread sees it."""

    id: int
    ignore_fsync: bool
    chosen: bool = False
    """The thread, or who started it, chose this stream; else the mount's policy put it there."""

    @property
    def is_default(self) -> bool:
        return self.id == DEFAULT


class _At:
    """An open directory of the volume, or a descriptor of the caller's, for the length of a with block."""

    def __init__(self, where: Where) -> None:
        self._own = False
        self._name = _name_of(where)
        if isinstance(where, int):
            self.fd = where
        elif isinstance(where, (str, bytes, os.PathLike)):
            self.fd = _open(os.fspath(where))
            self._own = True
        else:
            self.fd = where.fileno()

    def __enter__(self) -> int:
        return self.fd

    def __exit__(self, _: object, error: object, __: object) -> None:
        _add_name(error, self._name)
        self.close()

    def close(self) -> None:
        if self._own:
            self._own = False
            os.close(self.fd)


def _name_of(what: object) -> Union[str, bytes, None]:
    """What errors call it: a path, or the name of a file object."""
    if isinstance(what, (str, bytes)):
        return what
    if isinstance(what, os.PathLike):
        return cast(Union[str, bytes], os.fspath(what))
    name = getattr(what, "name", None)
    return name if isinstance(name, (str, bytes)) else None


def _add_name(error: object, name: Union[str, bytes, None]) -> None:
    if isinstance(error, OSError) and error.filename is None and name is not None:
        error.filename = name


@contextmanager
def _of(file: object) -> Iterator[None]:
    """Errors carry the file's name."""
    try:
        yield
    except OSError as error:
        _add_name(error, _name_of(file))
        raise


def _open(path: Union[str, bytes]) -> int:
    """A directory as it is, of anything else the directory that holds it."""
    flags = os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC
    try:
        return os.open(path, flags)
    except (NotADirectoryError, FileNotFoundError):
        # A symlink can lie on another volume than its file.
        real = os.path.realpath(path) if os.path.exists(path) else path
        parent = os.path.dirname(os.fsencode(real)) or b"."
        return os.open(parent, flags)


def _ioctl(fd: int, number: int, arg: bytearray) -> None:
    if fd < 0:
        raise OSError(errno.EBADF, os.strerror(errno.EBADF))
    try:
        fcntl.ioctl(fd, number, arg)
    except OSError as e:
        if e.errno in (errno.ENOTTY, errno.ENOSYS, errno.EOPNOTSUPP):
            raise OSError(errno.ENOTSUP, "not a ccfs volume") from None
        raise


def _call(fd: int, number: int, stream_id: int, flags: int) -> StreamInfo:
    arg = bytearray(_ARG.pack(_VERSION, flags, stream_id))
    _ioctl(fd, number, arg)
    _, flags, stream_id = _ARG.unpack(arg)
    return StreamInfo(stream_id, bool(flags & _IGNORE_FSYNC), bool(flags & _CHOSEN))


def is_supported(where: Where) -> bool:
    """Whether this is a mounted ccfs volume."""
    try:
        get_stream(where)
    except OSError as e:
        if e.errno == errno.ENOTSUP:
            return False
        raise
    return True


def get_stream(where: Where) -> StreamInfo:
    """The stream of the calling thread."""
    with _At(where) as fd:
        return _call(fd, _GET, 0, 0)


def new_stream(where: Where, *, ignore_fsync: bool = False) -> int:
    """Makes a stream that nobody uses and returns its id. The caller does not enter it.

    With ignore_fsync the stream's fsync calls return at once; order stays, and sync works.
    """
    with _At(where) as fd:
        return _call(fd, _NEW, 0, _IGNORE_FSYNC if ignore_fsync else 0).id


def name_stream(where: Where, stream_id: int, name: Optional[str]) -> None:
    """Gives a stream of this user a name (0: the caller's stream), or takes it away (None).

    EEXIST: another stream of this user has that name; EINVAL: no name, or the default stream.
    """
    _named(where, _NAME, stream_id, name or "")


def find_stream(where: Where, name: str) -> int:
    """The id of the stream of that name. ENOENT: there is none."""
    return _named(where, _FIND, 0, name)


def _named(where: Where, number: int, stream_id: int, name: str) -> int:
    text = name.encode()
    if len(text) > 64:
        raise OSError(errno.EINVAL, os.strerror(errno.EINVAL))
    arg = bytearray(_NAME_ARG.pack(_VERSION, len(text), stream_id, text))
    with _At(where) as fd:
        _ioctl(fd, number, arg)
    return int(_NAME_ARG.unpack(arg)[2])


def set_stream(where: Where, stream_id: int, *, ignore_fsync: Optional[bool] = None) -> None:
    """Moves the calling thread into a stream; an id that nobody uses becomes the user's own.

    ignore_fsync changes the stream's flag, None leaves it. PermissionError: it is another user's. OSError with EBUSY: the
    thread is in an atomic group.
    """
    if stream_id < 1:
        raise ValueError("a stream's id is 1 (the default stream) or more")
    flags = _KEEP_FLAGS if ignore_fsync is None else int(ignore_fsync)
    with _At(where) as fd:
        _call(fd, _SET, stream_id, flags)


def fbarrier(file: Union[int, _HasFileno]) -> None:
    """Order without durability, where a program would call os.fsync only for the order; it waits for no device.

    What os.fsync(file) would make durable is never missing after a crash in which something survives that the calling thread's
    stream does later: what was stored through an mmap, too. A file object is flushed first. On other file systems OSError with
    ENOTSUP: os.fsync orders as well.
    """
    _barrier(file, 0)


def fdatabarrier(file: Union[int, _HasFileno]) -> None:
    """As fbarrier, in the place of os.fdatasync."""
    _barrier(file, _BARRIER_DATA)


def open_atomic(path: Union[str, bytes, "os.PathLike[str]", "os.PathLike[bytes]"], flags: int = os.O_RDWR | os.O_CREAT, mode: int = 0o666) -> int:
    """Opens a file as os.open does, for writing, and O_ATOMIC; returns its descriptor.

    What the disk holds of the file is at every moment its content of the last successful os.fsync (os.fdatasync, mmap.flush, syncv),
    whatever crashes, the program too. What was not synced at the last close is taken back. Others see unsynced changes at once. Where the mount has
    no atomic_files=on OSError with ENOTSUP, EBUSY when the file is open O_ATOMIC (a close under way is waited for).
    """
    fd, made = _open_or_make(path, (flags & ~os.O_TRUNC) | os.O_CLOEXEC, mode)
    try:
        try:
            with _of(path):
                _atomic_token(fd, _ATOMIC_OPEN)
        except OSError:
            # Nothing is left of a file that could not be made so.
            if made and os.fstat(fd).st_size == 0 and os.path.samestat(os.fstat(fd), os.lstat(path)):
                os.unlink(path)
            raise
        if flags & os.O_TRUNC:
            os.ftruncate(fd, 0)
    except BaseException:
        os.close(fd)
        raise
    return fd


def _open_or_make(path: Union[str, bytes, "os.PathLike[str]", "os.PathLike[bytes]"], flags: int, mode: int) -> Tuple[int, bool]:
    if not flags & os.O_CREAT or flags & os.O_EXCL:
        return os.open(path, flags, mode), bool(flags & os.O_CREAT)
    for _ in range(16):  # Others can make and remove it in between.
        try:
            return os.open(path, flags & ~os.O_CREAT), False
        except FileNotFoundError:
            pass
        try:
            return os.open(path, flags | os.O_EXCL, mode), True
        except FileExistsError:
            pass
    return os.open(path, flags, mode), False  # A symlink that leads to no file.


def make_atomic(file: Union[int, _HasFileno]) -> None:
    """As open_atomic, for a file that is open for writing (else OSError with EBADF).

    A file object is flushed first; what was written before, or stored through an mmap, is durable then.
    """
    with _of(file):
        fd = _flushed(file)
        _write_back(fd)
        _atomic_token(fd, _ATOMIC_OPEN)


def syncv(files: Sequence[Union[int, _HasFileno]]) -> None:
    """Makes the changes of several files of one volume that are open O_ATOMIC durable together: a crash leaves all of them, or none.

    At most 256. File objects are flushed first; what was stored through an mmap is among the changes. An OSError with EINVAL says
    which file is the reason, and why: it is not open O_ATOMIC, or on another volume.
    """
    fds = [_flushed(file) for file in files]
    if not 0 < len(fds) <= _SYNCV_MAX:
        raise OSError(errno.EINVAL, "1 to 256 files")
    tokens = []
    for n, (fd, file) in enumerate(zip(fds, files)):
        with _of(file):
            _write_back(fd)
            try:
                tokens.append(_atomic_token(fd, 0))
            except OSError as e:
                if e.errno != errno.EINVAL:
                    raise
                raise OSError(errno.EINVAL, f"file {n + 1} of syncv is not open O_ATOMIC") from None
            if os.fstat(fd).st_dev != os.fstat(fds[0]).st_dev:
                raise OSError(errno.EINVAL, f"file {n + 1} of syncv is on another volume than the first")
    tokens += [0] * (_SYNCV_MAX - len(fds))
    with _of(files[0]):
        _ioctl(fds[0], _SYNCV, bytearray(_SYNCV_ARG.pack(_VERSION, len(fds), *tokens)))


def _atomic_token(fd: int, flags: int) -> int:
    arg = bytearray(_ATOMIC_ARG.pack(_VERSION, flags, 0, 0))
    try:
        _ioctl(fd, _ATOMIC, arg)
    except OSError as e:
        if e.errno == errno.ENOTSUP:
            raise OSError(errno.ENOTSUP, "not on a ccfs volume that is mounted with -o atomic_files=on") from None
        raise
    token: int = _ATOMIC_ARG.unpack(arg)[2]
    return token


def _flushed(file: Union[int, _HasFileno]) -> int:
    if isinstance(file, int):
        return file
    flush = getattr(file, "flush", None)
    if flush is not None:
        flush()
    return file.fileno()


def _barrier(file: Union[int, _HasFileno], flags: int) -> None:
    with _of(file):
        fd = _flushed(file)
        _write_back(fd)
        _ioctl(fd, _BARRIER, bytearray(_BARRIER_ARG.pack(_VERSION, flags)))


@lru_cache(maxsize=None)
def _sync_file_range() -> "Callable[[int], int]":
    """sync_file_range(2) of a whole file, which Python does not have; returns the errno."""
    import ctypes

    call = ctypes.CDLL(None, use_errno=True).sync_file_range
    call.argtypes = (ctypes.c_int, ctypes.c_int64, ctypes.c_int64, ctypes.c_uint)
    wait_before, write, wait_after = 1, 2, 4
    flags = wait_before | write | wait_after
    return lambda fd: 0 if call(fd, 0, 0, flags) == 0 else ctypes.get_errno()


def _hand_over(fd: int) -> None:
    """syncfs(2), which Python does not have: brings what is dirty in mappings of the volume on its way."""
    import ctypes

    if ctypes.CDLL(None, use_errno=True).syncfs(ctypes.c_int(fd)) != 0:
        raise OSError(ctypes.get_errno(), "syncfs")


def _write_back(fd: int) -> None:
    """Hands what was stored through shared mappings to the file system, and waits until it has it; not until it is durable."""
    number = _sync_file_range()(fd)
    # Directories, pipes and the like have no pages.
    if number not in (0, errno.ESPIPE, errno.EINVAL, errno.ENOSYS):
        raise OSError(number, os.strerror(number))


def sync(where: Where, stream_id: int = 0) -> None:
    """Returns when everything that the stream (0: the caller's) did before the call is durable."""
    with _At(where) as fd:
        _call(fd, _SYNC, stream_id, 0)


def sync_volume(where: Where) -> None:
    """Returns when everything that anybody did on the volume before the call is durable, on every kernel.

    Linux before 6.18, and any Linux on a plain FUSE mount, does not tell ccfs of os.sync: it makes nothing durable there, nor does
    this call what was stored through an mmap that was not flushed (mmap.flush).
    """
    with _At(where) as fd:
        # Elsewhere nothing is synced.
        _call(fd, _GET, 0, 0)
        _hand_over(fd)
        _ioctl(fd, _SYNC_VOLUME, bytearray(_SYNC_VOLUME_ARG.pack(_VERSION, 0)))


def leave_stream(where: Where) -> None:
    """Moves the calling thread to where the mount's policy puts it, as if it had never entered a stream."""
    with _At(where) as fd:
        _call(fd, _SET, _POLICY, _KEEP_FLAGS)


class stream:
    """A with block in a stream of its own, or in the one that is named.

    The thread is back where it was after the block. Threads and processes started inside stay in it. Blocks nest.

    On other file systems the block runs without a stream: ordered is False, id is None, and sync raises OSError (ENOTSUP), since
    it cannot keep its promise.
    """

    def __init__(
        self,
        where: Where,
        stream_id: Optional[int] = None,
        *,
        ignore_fsync: Optional[bool] = None,
    ) -> None:
        self._where = where
        self._wanted = stream_id
        self._ignore_fsync = ignore_fsync
        self._at: Optional[_At] = None
        self._before = StreamInfo(DEFAULT, False)
        self.id: Optional[int] = None
        """The stream's id; None outside the block and on other file systems."""

    @property
    def ordered(self) -> bool:
        """Whether the block is in a stream, which keeps the order of its updates."""
        return self.id is not None

    def __enter__(self) -> "stream":
        if self._at is not None:
            raise RuntimeError("this stream block is entered already")
        at = _At(self._where)
        try:
            self._before = get_stream(at.fd)
            if self._wanted is None:
                own = new_stream(at.fd, ignore_fsync=bool(self._ignore_fsync))
                set_stream(at.fd, own)
            else:
                own = self._wanted
                set_stream(at.fd, own, ignore_fsync=self._ignore_fsync)
        except OSError as e:
            at.close()
            if e.errno == errno.ENOTSUP:
                return self
            raise
        except BaseException:
            at.close()
            raise
        self._at, self.id = at, own
        return self

    def sync(self) -> None:
        """Returns when everything that the stream did before the call is durable."""
        if self._at is None or self.id is None:
            raise OSError(errno.ENOTSUP, "not a ccfs volume, or outside of the block")
        sync(self._at.fd, self.id)

    def __exit__(
        self,
        kind: Optional[Type[BaseException]],
        value: Optional[BaseException],
        trace: Optional[TracebackType],
    ) -> None:
        at, self._at, self.id = self._at, None, None
        if at is None:
            return
        try:
            if self._before.chosen:
                set_stream(at.fd, self._before.id)
            else:
                leave_stream(at.fd)
        except OSError:
            # A volume that was stopped has no streams any more. An error inside the block says more.
            if kind is None:
                raise
        finally:
            at.close()


class Cancelled(OSError):
    """The atomic group was taken back. Nothing of it is there."""

    reason: Optional[str] = None
    """Why: "asked", "left", "own time", "mount time", "waited" and "waits for nobody" (another program changed the same),
    "stores too large", "stores lost", "unmounted"; None: the daemon does not say."""


# By number; the first one stands for none.
_REASONS = (None, "asked", "left", "own time", "mount time", "waited", "waits for nobody", "stores too large", "stores lost", "unmounted")
_REASON_BITS = 0xFF


def _group(fd: int, number: int, handle: int, flags: int = 0, timeout_ms: int = 0) -> int:
    arg = bytearray(_GROUP_ARG.pack(_VERSION, flags, handle, timeout_ms))
    _ioctl(fd, number, arg)
    result: int = _GROUP_ARG.unpack(arg)[2]
    return result


def _reason(flags: int) -> Optional[str]:
    number = flags & _REASON_BITS
    return _REASONS[number] if number < len(_REASONS) else None


def begin_atomic(where: Where, *, timeout: Optional[float] = None) -> int:
    """Opens an atomic group, moves the calling thread into it, and returns its handle. `atomic` is the same as a block."""
    if timeout is not None and timeout <= 0:
        raise ValueError("a timeout is more than 0 seconds")
    with _At(where) as fd:
        return _group(fd, _GROUP_BEGIN, 0, 0, 0 if timeout is None else max(1, int(timeout * 1000)))


def commit_atomic(where: Where, handle: int = 0, *, ordered: bool = False) -> None:
    """Commits a group (0: the caller's) and leaves it: it is durable, or (ordered) only has its place in the order.

    Cancelled: it was taken back, and nothing of it is there; its attribute reason says why. OSError with ENOENT: there is no such group;
    EALREADY: it has been committed.
    """
    arg = bytearray(_GROUP_ARG.pack(_VERSION, _ORDERED if ordered else 0, handle, 0))
    with _At(where) as fd:
        try:
            _ioctl(fd, _GROUP_COMMIT, arg)
        except OSError as e:
            # The call answers beside the error.
            reason = _reason(_GROUP_ARG.unpack(arg)[1])
            if e.errno == errno.ECANCELED:
                text = "the atomic group was taken back" + (f": {reason}" if reason else "")
                cancelled = Cancelled(errno.ECANCELED, text)
                cancelled.reason = reason
                raise cancelled from None
            raise


def abort_atomic(where: Where, handle: int = 0) -> None:
    """Takes a group (0: the caller's) back and leaves it. One that was taken back already is no error."""
    with _At(where) as fd:
        _group(fd, _GROUP_ABORT, handle)


class atomic:
    """A with block whose changes survive a crash together, or not at all.

        with ccfs.atomic(path):
            ...         # any number of files and directories

    They are durable together when the block has ended. An exception in the block, abort(), the death of the process: everything is
    as it was before. Threads and processes started inside are members; others of the same user enter by its handle (enter_atomic).

    ordered: the end of the block does not wait for the device; what the thread's stream does later survives only with the group.
    timeout: seconds after which a group that is still open is taken back.

    Raises Cancelled at the end of the block if the group was taken back in between; before that, changes fail with OSError
    (ECANCELED). Others see the changes at once. On other file systems OSError with ENOTSUP when the block is entered.
    """

    def __init__(
        self,
        where: Where,
        *,
        ordered: bool = False,
        timeout: Optional[float] = None,
    ) -> None:
        if timeout is not None and timeout <= 0:
            raise ValueError("a timeout is more than 0 seconds")
        self._where = where
        self._ordered = ordered
        self._timeout = timeout
        self._at: Optional[_At] = None
        self._over = False
        self.handle = 0
        """By which others of the same user enter the group, inside the block; 0 outside."""

    def __enter__(self) -> "atomic":
        if self._at is not None:
            raise RuntimeError("this atomic block is entered already")
        at = _At(self._where)
        try:
            with _of(self._where):
                self.handle = begin_atomic(at.fd, timeout=self._timeout)
        except BaseException:
            at.close()
            raise
        self._at, self._over = at, False
        return self

    def abort(self) -> None:
        """Takes the changes back now; the rest of the block is not in the group."""
        if self._at is None:
            raise RuntimeError("outside of the block")
        if not self._over:
            self._over = True
            abort_atomic(self._at.fd, self.handle)

    def __exit__(
        self,
        kind: Optional[Type[BaseException]],
        value: Optional[BaseException],
        trace: Optional[TracebackType],
    ) -> None:
        at, self._at = self._at, None
        handle, self.handle = self.handle, 0
        if at is None or self._over:
            if at is not None:
                at.close()
            return
        try:
            if kind is None:
                commit_atomic(at.fd, handle, ordered=self._ordered)
            else:
                abort_atomic(at.fd, handle)
        except OSError:
            # An error inside the block says more; nobody commits what is left.
            if kind is None:
                raise
        finally:
            at.close()


def enter_atomic(where: Where, handle: int) -> None:
    """Moves the calling thread into the group of a handle, until that group ends. PermissionError: it is another user's."""
    with _At(where) as fd:
        _group(fd, _GROUP_ENTER, handle)
