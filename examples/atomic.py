#!/usr/bin/env python3
"""The program of atomic.c in Python. usage: atomic.py DIR ROUNDS"""

import contextlib
import os
import sys

import ccfs


class Wrong(Exception):
    """On purpose, in the middle."""


def put(name: str, mode: str, text: str) -> None:
    with open(name, mode, encoding="ascii") as f:
        f.write(text)


def steps(number: int, wrong: bool) -> None:
    text = f"{number:09}\n"
    put("counter", "r+" if os.path.exists("counter") else "w", text)
    put("copy.new", "w", text)
    if wrong:
        raise Wrong
    os.rename("copy.new", "copy")
    put("log", "a", text)


def main() -> None:
    if len(sys.argv) != 3:
        sys.exit("usage: atomic.py DIR ROUNDS")
    os.chdir(sys.argv[1])
    groups = ccfs.is_supported(".")
    print("atomic" if groups else "plain", flush=True)
    for number in range(1, int(sys.argv[2]) + 1):
        if groups and number % 3 == 0:
            with contextlib.suppress(Wrong), ccfs.atomic("."):
                steps(number, wrong=True)
        with ccfs.atomic(".") if groups else contextlib.nullcontext():
            steps(number, wrong=False)
        print("committed", number, flush=True)


main()
