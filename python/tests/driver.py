"""The package's calls, step by step: one line of stdin is a step, one number on stdout its errno, 0 for success.

verify/tests/tests/calls.rs has the steps; crates/libccfs/tests/driver.c and verify/tests/src/bin/ccfs-calls.rs do the same.
"""

import errno
import mmap
import os
import sys
from typing import Dict, List

import ccfs

MAPPED = 8192


class Driver:
    def __init__(self) -> None:
        self.files: Dict[str, int] = {"closed": 987654, "negative": -1}
        self.maps: Dict[str, mmap.mmap] = {}
        # Streams and groups, by the name that the steps give them.
        self.ids: Dict[str, int] = {"default": ccfs.DEFAULT, "own": 0, "unknown": 7}
        self.place = ""

    def at(self) -> int:
        return self.files[self.place]

    def step(self, what: str, *words: str) -> None:
        getattr(self, "do_" + what)(*words)

    def do_cd(self, path: str) -> None:
        os.chdir(path)

    def do_at(self, slot: str) -> None:
        self.place = slot

    def do_open(self, slot: str, path: str, how: str) -> None:
        flags = {"new": os.O_RDWR | os.O_CREAT, "path": os.O_PATH}.get(how, os.O_RDONLY)
        self.files[slot] = os.open(path, flags, 0o644)

    def do_pipe(self, slot: str) -> None:
        self.files[slot], other = os.pipe()
        os.close(other)

    def do_dup(self, slot: str, to: str) -> None:
        self.files[to] = os.dup(self.files[slot])

    def do_close(self, slot: str) -> None:
        if slot in self.maps:
            self.maps.pop(slot).close()
        os.close(self.files.pop(slot))

    def do_size(self, slot: str, size: str) -> None:
        os.ftruncate(self.files[slot], int(size))

    def do_map(self, slot: str) -> None:
        self.maps[slot] = mmap.mmap(self.files[slot], MAPPED)

    def do_store(self, slot: str, at: str, text: str) -> None:
        self.maps[slot][int(at) : int(at) + len(text)] = text.encode()

    def do_write(self, slot: str, at: str, text: str) -> None:
        os.pwrite(self.files[slot], text.encode(), int(at))

    def do_reads(self, slot: str, text: str) -> None:
        if os.pread(self.files[slot], len(text), 0) != text.encode():
            raise OSError(errno.EIO, "other bytes")

    def do_rename(self, source: str, to: str) -> None:
        os.rename(source, to)

    def do_fsync(self, slot: str) -> None:
        os.fsync(self.files[slot])

    def do_open_atomic(self, slot: str, path: str) -> None:
        self.files[slot] = ccfs.open_atomic(path)

    def do_make_atomic(self, slot: str) -> None:
        ccfs.make_atomic(self.files[slot])

    def do_syncv(self, *slots: str) -> None:
        ccfs.syncv([self.files[slot] for slot in slots])

    def do_fbarrier(self, slot: str) -> None:
        ccfs.fbarrier(self.files[slot])

    def do_fdatabarrier(self, slot: str) -> None:
        ccfs.fdatabarrier(self.files[slot])

    def do_newstream(self, name: str, flags: str) -> None:
        self.ids[name] = ccfs.new_stream(self.at(), ignore_fsync=flags == "ignore")

    def do_setstream(self, name: str) -> None:
        ccfs.set_stream(self.at(), self.ids[name])

    def do_leave(self) -> None:
        ccfs.leave_stream(self.at())

    def do_instream(self, name: str) -> None:
        if ccfs.get_stream(self.at()).id != self.ids[name]:
            raise OSError(errno.EIO, "another stream")

    def do_streamsync(self, name: str) -> None:
        ccfs.sync(self.at(), self.ids[name])

    def do_sync_volume(self) -> None:
        ccfs.sync_volume(self.at())

    def do_begin(self, name: str) -> None:
        self.ids[name] = ccfs.begin_atomic(self.at())

    def do_commit(self, name: str) -> None:
        ccfs.commit_atomic(self.at(), self.ids[name])

    def do_commit_ordered(self, name: str) -> None:
        ccfs.commit_atomic(self.at(), self.ids[name], ordered=True)

    def do_abort(self, name: str) -> None:
        ccfs.abort_atomic(self.at(), self.ids[name])

    def do_enter(self, name: str) -> None:
        ccfs.enter_atomic(self.at(), self.ids[name])


def main() -> None:
    driver = Driver()
    for line in sys.stdin:
        words: List[str] = line.rstrip("\n").split(" ")
        number = 0
        try:
            driver.step(*words)
        except OSError as e:
            number = e.errno or -1
        print(number, flush=True)


if __name__ == "__main__":
    main()
