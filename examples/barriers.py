#!/usr/bin/env python3
"""The program of barriers.c in Python. usage: barriers.py DIR ROUNDS"""

import errno
import os
import sys
from typing import TextIO

import ccfs


class Order:
    """Barriers where the file system has them, fdatasync elsewhere."""

    def __init__(self) -> None:
        self.barriers = True

    def __call__(self, file: TextIO) -> None:
        """What was done to the file comes before whatever is done next."""
        if self.barriers:
            try:
                ccfs.fdatabarrier(file)
                return
            except OSError as e:
                if e.errno != errno.ENOTSUP:
                    raise
                self.barriers = False
        file.flush()
        os.fdatasync(file.fileno())


def main(place: str, rounds: int) -> None:
    order = Order()
    state = os.path.join(place, "state")
    directory = os.open(place, os.O_RDONLY)
    with open(os.path.join(place, "log"), "a", encoding="ascii") as log:
        order(log)
        print("ordered" if order.barriers else "plain", flush=True)
        for n in range(1, rounds + 1):
            log.write(f"record {n}\n")
            order(log)
            with open(state + ".new", "w", encoding="ascii") as new:
                new.write(f"{n}\n")
                order(new)
            os.rename(state + ".new", state)
            if n % 10 == 0:
                os.fsync(directory)
                print("synced", n, flush=True)


if __name__ == "__main__":
    if len(sys.argv) != 3:
        sys.exit("usage: barriers.py DIR ROUNDS")
    main(sys.argv[1], int(sys.argv[2]))
