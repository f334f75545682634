"""Reads trees in several orders, while it changes some of what it is about to read."""
import ctypes
import hashlib
import os
import random
import stat
import subprocess
import sys
import threading
import time

SIZES = [0, 1, 10, 500, 3000, 4096, 16384, 16385, 40000]


def put(path, data, flags=os.O_CREAT | os.O_TRUNC):
    fd = os.open(path, os.O_WRONLY | flags, 0o644)
    while data:
        data = data[os.write(fd, data):]
    os.close(fd)


def read(path):
    fd = os.open(path, os.O_RDONLY)
    try:
        st = os.fstat(fd)
        data = b""
        while part := os.read(fd, 7000):
            data += part
        assert st.st_size == len(data), (path, st.st_size, len(data))
        return st, data
    finally:
        os.close(fd)


def make(base, seed):
    rng = random.Random(seed)
    os.mkdir(base)
    for d in range(12):
        os.mkdir(f"{base}/d{d}")
        names = list(range(rng.choice([1, 2, 3, 20, 60])))
        rng.shuffle(names)
        for n in names:
            size = rng.choice(SIZES)
            put(f"{base}/d{d}/f{n}", rng.randbytes(size))
        os.mkdir(f"{base}/d{d}/sub")
        os.symlink("f0", f"{base}/d{d}/link")


def change(rng, base, dir, names):
    """One of the files that may be read next becomes another one."""
    name = rng.choice(names)
    path, other = f"{base}/{dir}/{name}", f"{base}/{dir}/{rng.choice(names)}"
    what = rng.randrange(14)
    try:
        if what == 0:
            put(path, rng.randbytes(300))
        elif what == 1:
            put(path, b"appended", os.O_APPEND)
        elif what == 2:
            os.truncate(path, rng.choice([0, 5, 20000]))
        elif what == 3:
            os.unlink(path)
        elif what == 4:
            os.unlink(path)
            put(path, b"made anew")
        elif what == 5:
            os.rename(path, other)
        elif what == 6:
            put(f"{base}/{dir}/new", b"renamed " + name.encode())
            os.rename(f"{base}/{dir}/new", path)
        elif what == 7:
            os.chmod(path, rng.choice([0o600, 0o644, 0o400]))
        elif what == 8:
            os.link(path, f"{base}/{dir}/linked{rng.randrange(1000)}")
        elif what == 9:
            os.utime(path, (1_000_000_000, 1_100_000_000))
        elif what == 10:
            fd = os.open(path, os.O_RDONLY)
            os.fchmod(fd, 0o604)
            os.utime(fd, (1_000_000_000, 1_200_000_000))
            os.close(fd)
        elif what == 11:
            os.unlink(path)
            os.mkdir(path)
        elif what == 12:
            os.unlink(path)
            os.symlink("f1", path)
        else:
            # It is written by a descriptor that stays open while others are read.
            fd = os.open(f"{base}/{dir}/kept", os.O_RDWR | os.O_CREAT, 0o600)
            os.write(fd, b"first")
            return fd
    except OSError as e:
        print("  ", e.errno)


def walk(base, seed, order):
    rng = random.Random(seed)
    kept, said = [], []
    for dir in sorted(os.listdir(base), key=lambda d: (len(d), d)):
        with os.scandir(f"{base}/{dir}") as entries:
            all = [(e.name, e.inode()) for e in entries]
        if order == "name":
            all.sort()
        elif order == "number":
            all.sort(key=lambda one: one[1])
        elif order == "random":
            all.sort()
            rng.shuffle(all)
        lines = []
        for name, _ in all:
            path = f"{base}/{dir}/{name}"
            if order in ("name", "random") and rng.randrange(4) == 0:
                fd = change(rng, base, dir, [name for name, _ in all])
                if fd is not None:
                    kept.append(fd)
            if kept and rng.randrange(3) == 0:
                os.write(kept[-1], b"more")
            try:
                if stat.S_ISDIR(os.lstat(path).st_mode):
                    continue
                st, data = read(path)
                now = os.lstat(path) if not os.path.islink(path) else st
                what = [oct(st.st_mode), st.st_nlink, st.st_size, now.st_size, now.st_ino == st.st_ino]
                lines.append(f"{path} {what} {hashlib.md5(data).hexdigest()}")
            except OSError as e:
                lines.append(f"{path} {e.errno}")
        said += sorted(lines) if order in ("number", "listed") else lines
        if len(kept) > 2:
            os.close(kept.pop(0))
    for fd in kept:
        os.close(fd)
    print(order, *said, sep="\n")


def threads(base, seconds):
    """Who reads a file after a version of it is there finds that one or a later one."""
    os.mkdir(base)
    there = [0] * 24
    end, wrong, reads = time.monotonic() + seconds, [], [0]

    def version(n, v):
        return b"%d %d " % (n, v) * (1 + (n + v) % 50)

    def path(n):
        return f"{base}/d{n % 2}/f{n}"

    for d in range(2):
        os.mkdir(f"{base}/d{d}")
    for n in range(24):
        put(path(n), version(n, 0))

    def writer(mine):
        rng, v = random.Random(mine), 0
        while time.monotonic() < end:
            v += 1
            n = rng.randrange(12) * 2 + mine
            new, how = f"{base}/new{mine}", rng.randrange(4)
            if how == 0:
                put(path(n), version(n, v))
            elif how == 1:
                put(new, version(n, v))
                os.rename(new, path(n))
            elif how == 2:
                os.unlink(path(n))
                put(path(n), version(n, v))
            else:
                fd = os.open(new, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
                os.link(new, f"{new}x")
                os.rename(f"{new}x", path(n))
                os.unlink(new)
                os.write(fd, version(n, v))
                os.close(fd)
            there[n] = v
            time.sleep(rng.choice([0, 0, 0.0003, 0.002]))

    def reader():
        while time.monotonic() < end:
            for d in range(2):
                names = sorted(os.listdir(f"{base}/d{d}"))
                for name in names:
                    n = int(name[1:])
                    least = there[n]
                    try:
                        with open(f"{base}/d{d}/{name}", "rb") as file:
                            words = file.read().split()
                    except FileNotFoundError:
                        continue
                    reads[0] += 1
                    # It may be empty while it is written.
                    if words and int(words[1]) < least:
                        wrong.append((name, words[1], least))

    all = [threading.Thread(target=writer, args=(mine,)) for mine in range(2)]
    all += [threading.Thread(target=reader) for _ in range(2)]
    for one in all:
        one.start()
    for one in all:
        one.join()
    for n in range(24):
        if read(path(n))[1] != version(n, there[n]):
            wrong.append((n, "at the end"))
    print("reads", reads[0] > 0, "wrong", wrong[:5])


class Dirent(ctypes.Structure):
    _fields_ = [("ino", ctypes.c_uint64), ("off", ctypes.c_int64), ("reclen", ctypes.c_uint16),
                ("kind", ctypes.c_uint8), ("name", ctypes.c_char * 256)]


def above(path):
    """The inode number of ".." in a listing."""
    libc = ctypes.CDLL(None)
    libc.opendir.restype = ctypes.c_void_p
    libc.readdir.restype = ctypes.POINTER(Dirent)
    libc.readdir.argtypes = libc.closedir.argtypes = [ctypes.c_void_p]
    dir = libc.opendir(path.encode())
    assert dir, path
    found = None
    while entry := libc.readdir(dir):
        if entry.contents.name == b"..":
            found = entry.contents.ino
    libc.closedir(dir)
    return found


def places(base):
    for parent in [base, *(f"{base}/p{p}" for p in range(4))]:
        os.mkdir(parent)
    for d in range(60):
        os.mkdir(f"{base}/p{d % 4}/d{d}")
        put(f"{base}/p{d % 4}/d{d}/f", b"content")


def moves(base, n):
    """Directories that were found, and not read yet, get another place: what is above them is another one then."""
    rng = random.Random(n)
    parents = [f"{base}/p{p}" for p in range(4)]
    where = {d: parents[d % 4] for d in range(60)}
    # By another process, so that this one has to be told what is there.
    subprocess.run([sys.executable, __file__, "places", base, "0"], check=True)
    # Some are read, so that the next ones are found in advance.
    for parent in parents:
        for name in sorted(os.listdir(parent))[:4]:
            read(f"{parent}/{name}/f")
            os.listdir(f"{parent}/{name}")
    for turn in range(300):
        d, to = rng.randrange(60), rng.choice(parents)
        old = where[d]
        if rng.randrange(2):
            os.stat(f"{old}/d{d}/f")
        os.rename(f"{old}/d{d}", f"{to}/d{d}")
        where[d] = to
        if rng.randrange(3) == 0:
            assert above(f"{to}/d{d}") == os.stat(to).st_ino, (turn, d)
            assert os.listdir(f"{to}/d{d}") == ["f"]
    for d, parent in where.items():
        assert above(f"{parent}/d{d}") == os.stat(parent).st_ino, d
    print("moved")


what, base, n = sys.argv[1], sys.argv[2], int(sys.argv[3])
if what == "make":
    make(base, n)
elif what == "places":
    places(base)
elif what == "moves":
    moves(base, n)
elif what == "threads":
    threads(base, n)
else:
    for order in ["listed", "number", "name", "random", "name", "listed"]:
        walk(base, n, order)
