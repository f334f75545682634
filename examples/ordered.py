#!/usr/bin/env python3
"""The program of ordered.c in Python. usage: ordered.py DIR ROUNDS"""

import os
import sys

import ccfs


def write(path: str, mode: str, text: str, durable: bool) -> None:
    with open(path, mode, encoding="ascii") as f:
        f.write(text)
        if durable:
            f.flush()
            os.fsync(f.fileno())


def main(place: str, rounds: int) -> None:
    log, state = os.path.join(place, "log"), os.path.join(place, "state")
    with ccfs.stream(place, ignore_fsync=True) as stream:
        print("ordered" if stream.ordered else "plain", flush=True)
        for n in range(1, rounds + 1):
            # Elsewhere each step has to be durable before the next one.
            write(log, "a", f"record {n}\n", durable=not stream.ordered)
            write(state + ".new", "w", f"{n}\n", durable=not stream.ordered)
            os.rename(state + ".new", state)
            if n % 10 == 0:
                if stream.ordered:
                    stream.sync()
                else:
                    directory = os.open(place, os.O_RDONLY)
                    os.fsync(directory)
                    os.close(directory)
                print("synced", n, flush=True)


if __name__ == "__main__":
    if len(sys.argv) != 3:
        sys.exit("usage: ordered.py DIR ROUNDS")
    main(sys.argv[1], int(sys.argv[2]))
