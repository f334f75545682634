"""Several connections of one process to one database, as they come and go, and as others replace its file.
usage: sqlite-connections.py EXTENSION DIR"""
import os
import sqlite3
import subprocess
import sys

extension, top = sys.argv[1:]
first = sqlite3.connect(":memory:", isolation_level=None)
first.enable_load_extension(True)
first.load_extension(extension)


def connect(name, **how):
    return sqlite3.connect(name, isolation_level=None, timeout=0, **how)


def others(name, sql):
    """Another program, without the extension: what it says, or its error."""
    done = subprocess.run(["sqlite3", name, sql], capture_output=True, text=True)
    return done.stdout.strip() if done.returncode == 0 else done.stderr.strip()


def count(db):
    return db.execute("SELECT count(*) FROM t").fetchone()[0]


def new(name):
    path = os.path.join(top, name)
    db = connect(path)
    db.execute("CREATE TABLE t(a)")
    db.execute("INSERT INTO t VALUES(1)")
    return path, db


def fails(call, *arguments):
    try:
        call(*arguments)
    except sqlite3.Error as error:
        return str(error)
    raise AssertionError("no error")


def replaced():
    """The file is replaced while connections are open: a new one sees the new file, whoever of the old ones is left."""
    for closes in (False, True):
        path, a = new("replaced%d.db" % closes)
        b = connect(path)
        assert count(b) == 1
        other, n = new("other%d.db" % closes)
        n.execute("INSERT INTO t VALUES(2)")
        n.close()
        os.rename(other, path)
        if closes:
            b.close()
        c = connect(path)
        c.execute("INSERT INTO t VALUES(3)")
        assert count(c) == 3, count(c)
        # Its locks are on the new file.
        c.execute("BEGIN IMMEDIATE")
        assert "locked" in others(path, "INSERT INTO t VALUES(4)")
        c.execute("COMMIT")
        c.close()
        a.close()
        assert others(path, "PRAGMA integrity_check; SELECT count(*) FROM t").split() == ["ok", "3"]


def removed():
    """It is deleted while a connection is open: the next one makes a new one."""
    path, a = new("removed.db")
    os.unlink(path)
    b = connect(path)
    b.execute("CREATE TABLE t(a)")
    b.execute("INSERT INTO t VALUES(1)")
    assert count(b) == 1 and others(path, "SELECT count(*) FROM t") == "1"
    b.close()
    a.close()


def read_only():
    """One that only reads leaves nothing with which another one could not write."""
    path, a = new("read-only.db")
    b = connect("file:%s?mode=ro" % path, uri=True)
    assert count(b) == 1 and "readonly" in fails(b.execute, "INSERT INTO t VALUES(2)")
    b.close()
    c = connect(path)
    c.execute("INSERT INTO t VALUES(2)")
    assert count(a) == 2
    c.close()
    a.close()


def locks_of_others():
    """Closing a connection takes no locks away from others of this process: by another name, or in SQLite's own way."""
    path, a = new("locks.db")
    os.link(path, os.path.join(top, "link.db"))
    for name in ("file:%s?vfs=unix" % path, os.path.join(top, "link.db")):
        u = connect(name, uri=True)
        u.execute("BEGIN IMMEDIATE")
        again = connect(path)
        count(again)
        again.close()
        a.close()
        assert "locked" in others(path, "INSERT INTO t VALUES(9)")
        u.execute("INSERT INTO t VALUES(2)")
        u.execute("COMMIT")
        u.close()
        a = connect(path)
    assert count(a) == 3
    a.close()


def many():
    """Connections that come and go leave nothing behind."""
    path, a = new("many.db")
    u = connect("file:%s?vfs=unix" % path, uri=True)
    before = len(os.listdir("/proc/self/fd"))
    for n in range(200):
        b = connect(path)
        b.execute("INSERT INTO t VALUES(?)", (n,))
        b.close()
        r = connect("file:%s?mode=ro" % path, uri=True)
        assert count(r) == n + 2
        r.close()
        if n % 50 == 0:
            a.close()
            a = connect(path)
    after = len(os.listdir("/proc/self/fd"))
    assert after <= before + 3, (before, after)
    assert count(u) == 201
    u.close()
    a.close()


def modes():
    """The journal's mode changes under other connections."""
    path, a = new("modes.db")
    b = connect(path)
    total = 1
    for mode in ("truncate", "persist", "wal", "delete", "wal", "delete"):
        count(b)
        if mode == "delete" and a.execute("PRAGMA journal_mode").fetchone()[0] == "wal":
            b.close()
            b = None
        assert a.execute("PRAGMA journal_mode=" + mode).fetchone()[0] == mode
        b = b or connect(path)
        for db in (a, b):
            db.execute("INSERT INTO t VALUES(1)")
            total += 1
            assert count(a) == count(b) == total
        assert others(path, "SELECT count(*) FROM t") == str(total)
    a.execute("VACUUM")
    a.close()
    b.close()
    assert others(path, "PRAGMA integrity_check") == "ok"


def attached():
    """A transaction over two databases, also when it is taken back, with connections of their own."""
    one, a = new("one.db")
    two, b = new("two.db")
    a.execute("ATTACH ? AS two", (two,))
    for end, total in (("COMMIT", 2), ("ROLLBACK", 2), ("COMMIT", 3)):
        a.execute("BEGIN")
        a.execute("INSERT INTO main.t VALUES(2)")
        a.execute("INSERT INTO two.t VALUES(2)")
        a.execute(end)
        assert count(a) == count(b) == total
    a.close()
    b.close()
    assert others(one, "SELECT count(*) FROM t") == others(two, "SELECT count(*) FROM t") == "3"


def rolled_back():
    """Large transactions that are taken back, and savepoints."""
    path, a = new("rolled-back.db")
    b = connect(path)
    for n in range(5):
        a.execute("BEGIN")
        a.executemany("INSERT INTO t VALUES(randomblob(1000))", [()] * 3000)
        a.execute("SAVEPOINT s")
        a.execute("DELETE FROM t")
        a.execute("ROLLBACK TO s")
        a.execute("COMMIT" if n == 4 else "ROLLBACK")
        assert count(b) == (3001 if n == 4 else 1)
    a.close()
    b.close()
    assert others(path, "PRAGMA integrity_check; SELECT count(*) FROM t").split() == ["ok", "3001"]


def backed_up():
    """SQLite's own backup, from and to what is held."""
    path, a = new("source.db")
    to = connect(os.path.join(top, "copy.db"))
    a.backup(to)
    assert count(to) == 1
    to.execute("INSERT INTO t VALUES(2)")
    to.backup(a)
    assert count(a) == 2
    to.close()
    a.close()


def forked():
    """A child's connections and its parent's keep each other out, also where the parent had descriptors to spare."""
    path, a = new("forked.db")
    b = connect(path)
    count(b)
    b.close()
    wrote, ended = os.pipe(), os.pipe()
    child = os.fork()
    if child == 0:
        code = 1
        os.close(ended[1])
        try:
            c = connect(path)
            c.execute("BEGIN IMMEDIATE")
            c.execute("INSERT INTO t VALUES('child')")
            os.write(wrote[1], b"1")
            os.read(ended[0], 1)
            c.execute("COMMIT")
            code = 0
        finally:
            os._exit(code)
    os.close(wrote[1])
    assert os.read(wrote[0], 1) == b"1"
    d = connect(path)
    assert "locked" in fails(d.execute, "BEGIN IMMEDIATE")
    os.write(ended[1], b"1")
    assert os.waitpid(child, 0)[1] == 0
    d.execute("INSERT INTO t VALUES('parent')")
    rows = [row[0] for row in d.execute("SELECT a FROM t ORDER BY rowid")]
    assert rows == [1, "child", "parent"], rows
    d.close()
    a.close()
    assert others(path, "PRAGMA integrity_check") == "ok"


for test in (replaced, removed, read_only, locks_of_others, many, modes, attached, rolled_back, backed_up, forked):
    test()
    print("ok", test.__name__)
left = [name for name in os.listdir(top) if not name.endswith(".db")]
assert not left, left
