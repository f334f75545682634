"""Makes files, each with something done to it or nothing, and says what fstat(2) says last. Arguments: where, where to say it."""
import os
import subprocess
import sys

top, out = sys.argv[1:]
said = []


def fields(st):
    return " ".join(str(n) for n in (
        st.st_ino, oct(st.st_mode), st.st_nlink, st.st_uid, st.st_gid, st.st_size, st.st_blocks,
        st.st_atime_ns, st.st_mtime_ns, st.st_ctime_ns, st.st_dev))


def make(path, flags=os.O_RDWR, bits=0o666):
    return os.open(path, flags | os.O_CREAT | os.O_EXCL, bits)


def done(path, fd):
    said.append(f"{path} {fields(os.fstat(fd))}")
    os.close(fd)


def write(path, fd):
    os.write(fd, b"some")
    return path


def write_by_copy(path, fd):
    copy = os.dup(fd)
    os.write(copy, b"some")
    os.close(copy)
    return path


def write_by_another(path, fd):
    other = os.open(path, os.O_WRONLY)
    os.fstat(fd)
    os.write(other, b"some")
    os.close(other)
    return path


def truncate(path, fd):
    os.ftruncate(fd, 5)
    return path


def truncate_by_name(path, fd):
    os.truncate(path, 5)
    return path


def chmod(path, fd):
    os.fchmod(fd, 0o640)
    return path


def chmod_by_name(path, fd):
    os.chmod(path, 0o604)
    return path


def chmod_by_another(path, fd):
    other = os.open(path, os.O_RDONLY)
    os.fchmod(other, 0o600)
    os.close(other)
    return path


def chown(path, fd):
    os.fchown(fd, 12, 34)
    return path


def utime(path, fd):
    os.utime(fd, ns=(10**18, 10**18 + 7))
    return path


def utime_by_name(path, fd):
    os.utime(path, ns=(10**18, 10**18 + 7))
    return path


def link(path, fd):
    os.link(path, path + ".link")
    return path


def rename(path, fd):
    os.rename(path, path + ".new")
    return path + ".new"


def read(path, fd):
    assert os.read(fd, 10) == b""
    other = os.open(path, os.O_RDONLY)
    assert os.read(other, 10) == b""
    os.close(other)
    return path


def look(path, fd):
    subprocess.run(["/usr/bin/stat", path], stdout=subprocess.DEVNULL, check=True)
    return path


def chmod_by_others(path, fd):
    subprocess.run(["/usr/bin/chmod", "751", path], check=True)
    return path


def seek(path, fd):
    assert os.lseek(fd, 0, os.SEEK_END) == 0
    os.write(fd, b"some")
    assert os.lseek(fd, 0, os.SEEK_END) == 4
    os.lseek(fd, 1, os.SEEK_SET)
    return path


changes = [write, write_by_copy, write_by_another, truncate, truncate_by_name, chmod, chmod_by_name,
           chmod_by_another, utime, utime_by_name, rename, read, seek]
if os.geteuid() == 0:
    changes += [chown, link]
if top.endswith("others"):
    changes = [look, chmod_by_others]

os.mkdir(top)


def scene(name, umask=0o022, bits=0o777, acl=False):
    where = f"{top}/{name}"
    os.umask(umask)
    os.mkdir(where)
    os.chmod(where, bits)
    if acl:
        # user::rwx, group::r-x, other::---, as a default list.
        entries = b"".join(tag + b"\xff\xff\xff\xff" for tag in (b"\x01\0\x07\0", b"\x04\0\x05\0", b"\x20\0\0\0"))
        os.setxattr(where, "system.posix_acl_default", b"\x02\0\0\0" + entries)
    for n in range(40):
        for bits in (0o666, 0o600, 0o2777, 0o4711, 0o1644):
            path = f"{where}/bare{n}-{bits:o}"
            done(path, make(path, [os.O_WRONLY, os.O_RDWR, os.O_RDONLY][n % 3], bits))
    for change in changes:
        for n in range(8):
            path = f"{where}/{change.__name__}{n}"
            fd = make(path)
            # Sometimes it was looked at before.
            if n % 2:
                assert os.fstat(fd).st_nlink == 1
            done(change(path, fd), fd)


if "count" in top:
    # How often is counted outside.
    for n in range(2000):
        path = f"{top}/f{n}"
        done(path, make(path, os.O_WRONLY))
else:
    scene("plain")
    scene("masked", umask=0o137)
    scene("group", bits=0o2777)
    scene("list", acl=True)
    # Its group is another one's, until it is none's.
    os.umask(0o022)
    os.mkdir(f"{top}/turns")
    for n in range(100):
        os.chmod(f"{top}/turns", 0o2755 if n % 2 else 0o755)
        if os.geteuid() == 0:
            os.chown(f"{top}/turns", -1, n % 3)
        path = f"{top}/turns/f{n}"
        done(path, make(path))
    # Directories that are given away, and get their bits by a list, as cp -a does that. They keep what no list says.
    ranks = b"".join(tag + b"\xff\xff\xff\xff" for tag in (b"\x01\0\x07\0", b"\x04\0\x05\0", b"\x20\0\x05\0"))
    for n, bits in enumerate((0o755, 0o2755, 0o4711, 0o1777, 0o6750)):
        path = f"{top}/given{n}"
        os.mkdir(path)
        os.chmod(path, bits)
        for step in range(2):
            if os.geteuid() == 0:
                os.chown(path, 12 + step, 34 + step)
            os.setxattr(path, "system.posix_acl_access", b"\x02\0\0\0" + ranks)
            os.mkdir(f"{path}/below{step}")
            st = os.stat(path)
            assert st.st_mode & 0o7777 == bits & 0o7000 | 0o755, oct(st.st_mode)
            assert os.geteuid() != 0 or (st.st_uid, st.st_gid) == (12 + step, 34 + step)
            # A group that its parent gives.
            below = os.stat(f"{path}/below{step}")
            assert below.st_gid == (st.st_gid if bits & 0o2000 else os.getegid()), (oct(bits), below.st_gid)
        said.append(f"{path} {fields(os.stat(path))}")

with open(out, "w") as to:
    to.write("\n".join(said) + "\n")
