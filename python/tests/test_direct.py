"""Tests of direct calls. They need CCFS_LIBRARY, the C library; those of a volume CCFS_TEST_MOUNT as well, mounted with direct=on."""

import errno
import os
import tempfile
import unittest
from pathlib import Path
from unittest import mock

import ccfs
from ccfs import direct

MOUNT = os.environ.get("CCFS_TEST_MOUNT")
NEW = os.O_RDWR | os.O_CREAT | os.O_EXCL


class Without(unittest.TestCase):
    def test_no_library(self) -> None:
        direct._library.cache_clear()
        self.addCleanup(direct._library.cache_clear)
        with mock.patch.dict(os.environ, CCFS_LIBRARY="/no/such/library.so"), self.assertRaises(OSError) as caught:
            direct.Session("/")
        self.assertEqual(caught.exception.errno, errno.ENOSYS)
        self.assertEqual(caught.exception.filename, "/no/such/library.so")


@unittest.skipUnless(os.environ.get("CCFS_LIBRARY"), "CCFS_LIBRARY is not set")
class Elsewhere(unittest.TestCase):
    """Through the mount: the same calls, the same results."""

    is_direct = False

    def setUp(self) -> None:
        place = tempfile.TemporaryDirectory(dir=self.top())
        self.addCleanup(place.cleanup)
        self.dir = place.name

    def top(self) -> str:
        return tempfile.gettempdir()

    def same(self, a: os.stat_result, path: str) -> None:
        b = os.lstat(os.path.join(self.dir, path))
        self.assertEqual(tuple(a), tuple(b))
        for field in ("st_mtime_ns", "st_ctime_ns", "st_mtime", "st_blocks", "st_rdev"):
            self.assertEqual(getattr(a, field), getattr(b, field), field)

    def fails(self, number: int, call: object, *arguments: object) -> OSError:
        with self.assertRaises(OSError) as caught:
            call(*arguments)  # type: ignore[operator]
        self.assertEqual(caught.exception.errno, number)
        return caught.exception

    def test_taken(self) -> None:
        with direct.Session(self.dir, in_stream=True) as session, session.dir(self.dir) as top:
            if not self.is_direct:
                self.fails(errno.EBUSY, top.take, "taken", NEW)
                return
            with top.take("taken", NEW) as file:
                at = file.descriptor()
                self.addCleanup(os.close, at)
                file.write(b"taken", 0)
                self.assertEqual((os.fstat(at).st_size, file.is_direct), (5, True))
                self.assertEqual(os.pread(at, 9, 0), b"taken")
                self.fails(errno.ESTALE, file.write, b"x", 0)

    def test_a_tree(self) -> None:
        with direct.Session(self.dir) as session, session.root() as root:
            self.assertEqual(session.is_direct, self.is_direct)
            why = session.why_not
            self.assertEqual(why and why.errno, None if self.is_direct else errno.ENOTSUP)
            with root.make_dir("tree", 0o750) as tree, tree.open("file", NEW, 0o640) as file:
                self.assertEqual(file.is_direct, self.is_direct)
                self.assertEqual(file.write(b"hello", 0), 5)
                self.assertEqual(file.append(bytearray(b", world")), 7)
                self.assertEqual(file.append(memoryview(b"!\0?")), 3)
                self.assertEqual(file.read(100), b"hello, world!\0?")
                self.assertEqual((file.read(5, 7), file.read(5, 99)), (b"world", b""))
                opened, found, text = tree.open_and_read("file", 5)
                with opened:
                    self.assertEqual((found.st_size, text, opened.read(5, 7)), (15, b"hello", b"world"))
                self.fails(errno.EINVAL, tree.open_and_read, "file", -1)
                file.truncate(12)
                file.chmod(0o604)
                file.sync()
                tree.make_dir("sub").close()
                names = sorted(tree.list(), key=lambda e: e.name)
                self.assertEqual([(e.name, e.is_dir(), e.is_file()) for e in names], [("file", False, True), ("sub", True, False)])
                self.assertEqual(names[0].inode, file.stat().st_ino)
                tree.rename("file", root, "moved")
                tree.rmdir("sub")
                tree.sync()
                session.drain()
                before = file.stat()
                self.assertEqual(root.stat("moved"), before)
                # Now the kernel looks.
                self.same(before, "moved")
                self.assertEqual(Path(self.dir, "moved").read_bytes(), b"hello, world")
                self.assertEqual(os.listdir(Path(self.dir, "tree")), [])
                self.assertFalse(file.is_direct)
                file.append(b"!")
                self.assertEqual(Path(self.dir, "moved").read_bytes(), b"hello, world!")
                self.same(file.stat(), "moved")
            root.unlink("moved")
            self.assertEqual(os.listdir(self.dir), ["tree"])
            with root.open_dir("tree") as again:
                self.assertEqual(again.list(), [])

    def test_errors(self) -> None:
        with direct.Session(self.dir) as session, session.root() as root:
            error = self.fails(errno.ENOENT, root.open, "missing")
            self.assertIsInstance(error, FileNotFoundError)
            self.assertEqual(error.filename, "missing")
            self.fails(errno.EINVAL, root.open, "a", os.O_RDWR | os.O_APPEND)
            self.fails(errno.EINVAL, root.open, "a/b")
            self.fails(errno.ENOENT, root.unlink, b"missing")
            self.fails(errno.ENOENT, root.stat, Path("missing"))
            with root.open("file", os.O_WRONLY | os.O_CREAT) as file:
                self.fails(errno.EBADF, file.read, 1)
                self.fails(errno.EINVAL, file.write, b"x", -1)
                self.assertEqual(self.fails(errno.EINVAL, file.truncate, -1).filename, "file")
            self.fails(errno.EEXIST, root.make_dir, "file")
            self.fails(errno.ENOTDIR, root.open_dir, "file")
            self.assertRaises(ValueError, file.sync)
            self.assertRaises(ValueError, root.open, "a\0b")
            file.close()
        self.assertRaises(ValueError, session.root)
        self.fails(errno.ENOENT, direct.Session, os.path.join(self.dir, "not", "there"))
        self.fails(errno.EBADF, direct.Session, -1)

    def test_the_order_of_closing_does_not_matter(self) -> None:
        session = direct.Session(self.dir)
        root = session.root()
        file = root.open("file", NEW)
        session.close()
        root.close()
        file.append(b"x")
        self.assertEqual(file.is_direct, self.is_direct)
        if self.is_direct:
            file.barrier()
        else:
            try:
                file.barrier()
            except OSError as e:
                self.assertEqual(e.errno, errno.ENOTSUP)
        del file
        self.assertEqual(Path(self.dir, "file").read_bytes(), b"x")


@unittest.skipUnless(MOUNT, "CCFS_TEST_MOUNT is not set")
class Volume(Elsewhere):
    is_direct = True

    def top(self) -> str:
        assert MOUNT is not None
        return MOUNT

    def test_it_is_ccfs(self) -> None:
        self.assertTrue(ccfs.is_supported(self.dir))


if __name__ == "__main__":
    unittest.main()
