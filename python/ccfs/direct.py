"""Direct calls: file calls that do not go through the kernel, by memory that is shared with the daemon of a ccfs volume.

    from ccfs import direct
    with direct.Session("/mnt/work") as session, session.root() as root:
        with root.make_dir("tree") as tree, tree.open("file", os.O_RDWR | os.O_CREAT | os.O_EXCL) as file:
            file.append(b"hello")
            file.sync()     # only for durability: order needs none

Where no session can be had (another file system, a mount without direct=on), and for what the kernel knows already, the same calls go
through the mount, with the same results. Names are single names, no paths; a symbolic link is not followed. Objects may be closed in
any order. Errors are OSError, with errno and the name.

This part of the package needs the C library, libccfs.so.1; the environment variable CCFS_LIBRARY names another file. Without it the
first Session raises OSError with ENOSYS.
"""

from __future__ import annotations

import ctypes
import errno
import os
import platform
import stat as _stat
from dataclasses import dataclass
from functools import lru_cache
from types import TracebackType
from typing import Any, List, Optional, Tuple, Type, TypeVar, Union

from . import Where, _At, _name_of

__all__ = ["Dir", "DirEntry", "File", "Session"]

Name = Union[str, bytes, "os.PathLike[str]", "os.PathLike[bytes]"]
Data = Union[bytes, bytearray, memoryview]
_Self = TypeVar("_Self", bound="_Object")

_U32, _U64, _I64 = ctypes.c_uint32, ctypes.c_uint64, ctypes.c_int64
_TIMES = [(f"{t}{part}", _I64) for t in ("atime", "mtime", "ctime") for part in ("", "_ns")]


class _Stat(ctypes.Structure):
    """struct stat of 64-bit Linux: that of x86-64, or the one that all later machines share; with room behind."""

    _fields_ = (
        [("dev", _U64), ("ino", _U64), ("nlink", _U64), ("mode", _U32), ("uid", _U32), ("gid", _U32), ("pad", _U32), ("rdev", _U64)]
        + [("size", _I64), ("blksize", _I64), ("blocks", _I64)]
        if platform.machine() in ("x86_64", "AMD64")
        else [("dev", _U64), ("ino", _U64), ("mode", _U32), ("nlink", _U32), ("uid", _U32), ("gid", _U32), ("rdev", _U64), ("pad", _U64)]
        + [("size", _I64), ("blksize", _U32), ("pad2", _U32), ("blocks", _I64)]
    ) + [*_TIMES, ("room", _I64 * 8)]

    def result(self) -> os.stat_result:
        seconds = (self.atime, self.mtime, self.ctime)
        more: dict[str, Any] = {"st_blksize": self.blksize, "st_blocks": self.blocks, "st_rdev": self.rdev}
        for name, whole, part in zip(("atime", "mtime", "ctime"), seconds, (self.atime_ns, self.mtime_ns, self.ctime_ns)):
            more[f"st_{name}"] = whole + part / 1e9
            more[f"st_{name}_ns"] = whole * 10**9 + part
        first = (self.mode, self.ino, self.dev, self.nlink, self.uid, self.gid, self.size)
        return os.stat_result((*first, *seconds), more)


_EACH = ctypes.CFUNCTYPE(ctypes.c_int, ctypes.c_void_p, ctypes.c_char_p, _U64, ctypes.c_ubyte)


@lru_cache(maxsize=None)
def _library() -> ctypes.CDLL:
    name = os.environ.get("CCFS_LIBRARY") or "libccfs.so.1"
    try:
        library = ctypes.CDLL(name, use_errno=True)
        library.ccfs_session_begin
    except (OSError, AttributeError) as e:
        raise OSError(errno.ENOSYS, f"direct calls need the C library of ccfs: {e}", name) from None
    pointer, text, number, length, mode = ctypes.c_void_p, ctypes.c_char_p, ctypes.c_int, ctypes.c_size_t, ctypes.c_uint
    place, out = _I64, ctypes.POINTER(_Stat)
    # What each function takes, after what it returns; None: nothing.
    for call, (result, *takes) in {
        "session_begin": (pointer, number),
        "session_is_direct": (number, pointer),
        "session_why_not": (number, pointer),
        "session_drain": (number, pointer),
        "session_end": (None, pointer),
        "session_begin_in_stream": (pointer, number),
        "session_root": (pointer, pointer),
        "session_dir": (pointer, pointer, number),
        "dir_open": (pointer, pointer, text),
        "dir_make": (pointer, pointer, text, mode),
        "dir_close": (None, pointer),
        "dir_unlink": (number, pointer, text),
        "dir_rmdir": (number, pointer, text),
        "dir_rename": (number, pointer, text, pointer, text),
        "dir_stat": (number, pointer, text, out),
        "dir_list": (number, pointer, _EACH, pointer),
        "dir_sync": (number, pointer),
        "file_open": (pointer, pointer, text, number, mode),
        "file_open_and_read": (pointer, pointer, text, number, out, pointer, ctypes.POINTER(length)),
        "file_take": (pointer, pointer, text, number, mode),
        "file_descriptor": (number, pointer),
        "file_close": (None, pointer),
        "file_read": (ctypes.c_ssize_t, pointer, pointer, length, place),
        "file_write": (ctypes.c_ssize_t, pointer, text, length, place),
        "file_append": (ctypes.c_ssize_t, pointer, text, length),
        "file_truncate": (number, pointer, place),
        "file_stat": (number, pointer, out),
        "file_chmod": (number, pointer, mode),
        "file_sync": (number, pointer),
        "file_barrier": (number, pointer),
        "file_is_direct": (number, pointer),
    }.items():
        function = getattr(library, "ccfs_" + call)
        function.restype, function.argtypes = result, takes
    return library


def _call(name: str, *arguments: object, of: Union[str, bytes, None] = None) -> Any:
    """Calls a function of the library: -1 and NULL become OSError."""
    result = getattr(_library(), "ccfs_" + name)(*arguments)
    if result is None or result == -1:
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number), of)
    return result


def _encoded(name: Name) -> bytes:
    text = os.fsencode(name)
    if b"\0" in text:
        raise ValueError("embedded null byte")
    return text


class _Object:
    """One of the library's objects, until it is closed. A call on one that is closed raises ValueError, as those of Python's files."""

    _end = ""

    def __init__(self, pointer: int, name: Union[str, bytes, None]) -> None:
        self._pointer: Optional[int] = pointer
        self.name = name
        """What errors call it."""

    @property
    def _p(self) -> int:
        if self._pointer is None:
            raise ValueError("it is closed")
        return self._pointer

    def close(self) -> None:
        """Closes it; more than once is no error. No other thread may be in a call on it."""
        pointer, self._pointer = self._pointer, None
        if pointer is not None:
            getattr(_library(), "ccfs_" + self._end)(pointer)

    def __enter__(self: _Self) -> _Self:
        self._p
        return self

    def __exit__(
        self,
        kind: Optional[Type[BaseException]],
        value: Optional[BaseException],
        trace: Optional[TracebackType],
    ) -> None:
        self.close()

    def __del__(self) -> None:
        if getattr(self, "_pointer", None) is not None:
            self.close()


class Session(_Object):
    """A session on a volume, begun on a directory, with the user, groups, capabilities and umask that the process has then.

    It belongs to the process: after os.fork the child's calls on what is held raise OSError with EBADF; it begins its own.
    """

    _end = "session_end"

    def __init__(self, where: Where, in_stream: bool = False) -> None:
        """With in_stream what goes through it belongs to the stream in which this thread is now, whichever thread calls, and
        wherever it is then."""
        self._pointer = None
        name = _name_of(where)
        with _At(where) as fd:
            begin = "session_begin_in_stream" if in_stream else "session_begin"
            super().__init__(_call(begin, fd, of=name), name)

    @property
    def is_direct(self) -> bool:
        """Calls do not go through the kernel."""
        return bool(_call("session_is_direct", self._p))

    @property
    def why_not(self) -> Optional[OSError]:
        """Why no session could be had: ENOTSUP another file system, a mount without direct=on, a process that is confined or cannot
        be seen; ENOSPC there are too many."""
        number = _call("session_why_not", self._p)
        return OSError(number, os.strerror(number), self.name) if number else None

    def root(self) -> Dir:
        """The directory that the session was begun on."""
        return Dir(_call("session_root", self._p, of=self.name), self.name)

    def dir(self, where: Where) -> Dir:
        """A directory of the session's volume."""
        name = _name_of(where)
        with _At(where) as fd:
            return Dir(_call("session_dir", self._p, fd, of=name), name)

    def drain(self) -> None:
        """Waits until all that was accepted is carried out. Nothing needs it: whoever looks sees it."""
        _call("session_drain", self._p, of=self.name)


@dataclass(frozen=True)
class DirEntry:
    """A name of a directory."""

    name: str
    inode: int
    type: int
    """A DT_* value of dirent.h."""

    def is_dir(self) -> bool:
        return _stat.S_ISDIR(self.type << 12)

    def is_file(self) -> bool:
        return _stat.S_ISREG(self.type << 12)


class Dir(_Object):
    """A directory, open."""

    _end = "dir_close"

    def _name(self, call: str, name: Name, *arguments: object) -> Any:
        text = _encoded(name)
        return _call(call, self._p, text, *arguments, of=_name_of(name))

    def open_dir(self, name: Name) -> Dir:
        """Opens a directory."""
        return Dir(self._name("dir_open", name), _name_of(name))

    def make_dir(self, name: Name, mode: int = 0o777) -> Dir:
        """Makes a directory, as os.mkdir, and opens it."""
        return Dir(self._name("dir_make", name, mode), _name_of(name))

    def open(self, name: Name, flags: int = os.O_RDONLY, mode: int = 0o666) -> File:
        """Opens a file. Flags of os.open: O_RDONLY, O_WRONLY, O_RDWR; O_CREAT, O_EXCL, O_TRUNC. Others: OSError with EINVAL."""
        return File(self._name("file_open", name, flags, mode), _name_of(name))

    def open_and_read(self, name: Name, length: int, flags: int = os.O_RDONLY) -> Tuple[File, os.stat_result, bytes]:
        """Opens a file that is there, with its attributes and up to so many of its first bytes (at most 128 KiB): one call where
        it is held."""
        if length < 0:
            raise OSError(errno.EINVAL, os.strerror(errno.EINVAL), _name_of(name))
        out, data, count = _Stat(), ctypes.create_string_buffer(length), ctypes.c_size_t(length)
        file = self._name("file_open_and_read", name, flags, ctypes.byref(out), data, ctypes.byref(count))
        return File(file, _name_of(name)), out.result(), data.raw[: count.value]

    def take(self, name: Name, flags: int = os.O_RDWR, mode: int = 0o666) -> File:
        """Opens a file to be used without the kernel and locked by others (File.descriptor). As soon as anybody else looks at it
        its calls raise OSError with ESTALE. OSError with EBUSY: others have it open, or it cannot be held."""
        return File(self._name("file_take", name, flags, mode), _name_of(name))

    def unlink(self, name: Name) -> None:
        """As os.unlink."""
        self._name("dir_unlink", name)

    def rmdir(self, name: Name) -> None:
        """As os.rmdir."""
        self._name("dir_rmdir", name)

    def rename(self, name: Name, to: Dir, new_name: Name) -> None:
        """As os.rename, to a directory of the same session, which may be this one."""
        self._name("dir_rename", name, to._p, _encoded(new_name))

    def stat(self, name: Name) -> os.stat_result:
        """As os.lstat; st_dev is that of the session's directory, st_rdev 0."""
        out = _Stat()
        self._name("dir_stat", name, ctypes.byref(out))
        return out.result()

    def list(self) -> List[DirEntry]:
        """All names but "." and "..", in no order."""
        names: List[DirEntry] = []

        def each(_: object, name: bytes, inode: int, kind: int) -> int:
            names.append(DirEntry(os.fsdecode(name), inode, kind))
            return 0

        _call("dir_list", self._p, _EACH(each), None, of=self.name)
        return names

    def sync(self) -> None:
        """All of the session's changes that come before are durable, with what they depend on."""
        _call("dir_sync", self._p, of=self.name)


def _size(value: int) -> int:
    """A size or place in a file: ctypes would cut it to what fits."""
    if not -(1 << 63) <= value < 1 << 63:
        raise OverflowError("Python int too large to convert to C off_t")
    return value



class File(_Object):
    """A file, open. Every call names its place: there is no position."""

    _end = "file_close"

    @property
    def is_direct(self) -> bool:
        """The file's calls do not go through the kernel. As soon as somebody looks it up through the mount they do."""
        return bool(_call("file_is_direct", self._p, of=self.name))

    def descriptor(self) -> int:
        """A descriptor of a file that was taken, for its locks, and for everything once its calls raise ESTALE. The caller closes it."""
        return int(_call("file_descriptor", self._p, of=self.name))

    def read(self, length: int, offset: int = 0) -> bytes:
        """As os.pread; fewer bytes only at the file's end."""
        if length < 0:
            raise OSError(errno.EINVAL, os.strerror(errno.EINVAL), self.name)
        out = ctypes.create_string_buffer(length)
        count = _call("file_read", self._p, out, length, _size(offset), of=self.name)
        return out.raw[:count]

    def write(self, data: Data, offset: int) -> int:
        """As os.pwrite, but all of it, or an error."""
        text = bytes(memoryview(data))
        return int(_call("file_write", self._p, text, len(text), _size(offset), of=self.name))

    def append(self, data: Data) -> int:
        """Writes all of it at the file's end; in one piece up to 128 KiB."""
        text = bytes(memoryview(data))
        return int(_call("file_append", self._p, text, len(text), of=self.name))

    def truncate(self, size: int) -> None:
        """As os.ftruncate."""
        _call("file_truncate", self._p, _size(size), of=self.name)

    def stat(self) -> os.stat_result:
        """As os.fstat; see Dir.stat."""
        out = _Stat()
        _call("file_stat", self._p, ctypes.byref(out), of=self.name)
        return out.result()

    def chmod(self, mode: int) -> None:
        """As os.fchmod."""
        _call("file_chmod", self._p, mode, of=self.name)

    def sync(self) -> None:
        """As os.fsync."""
        _call("file_sync", self._p, of=self.name)

    def barrier(self) -> None:
        """As ccfs.fbarrier. On other file systems OSError with ENOTSUP."""
        _call("file_barrier", self._p, of=self.name)
