#!/usr/bin/env python3
"""Two files that always agree, without a journal: both are open O_ATOMIC, and one call makes the changes of both durable.

usage: syncv.py DIR ROUNDS

Prints "committed N" when both files hold N. Whatever crashes, the program too, they hold the last N that was committed, or the next one. Where
files cannot be O_ATOMIC it syncs one after the other, and a crash between the two leaves them apart.
"""

import errno
import os
import sys

import ccfs


def main() -> None:
    _, directory, rounds = sys.argv
    paths = [os.path.join(directory, name) for name in ("counter", "copy")]
    try:
        files = [ccfs.open_atomic(path) for path in paths]
        atomic = True
    except OSError as e:
        if e.errno != errno.ENOTSUP:
            raise
        files = [os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644) for path in paths]
        atomic = False
    print("atomic" if atomic else "plain", flush=True)
    for n in range(1, int(rounds) + 1):
        for file in files:
            os.pwrite(file, b"%d\n" % n, 0)
        if atomic:
            ccfs.syncv(files)
        else:
            for file in files:
                os.fsync(file)
        print("committed", n, flush=True)


main()
