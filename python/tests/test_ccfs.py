"""Tests of the package. Those of a volume need CCFS_TEST_MOUNT, a directory of a mounted one; `make test` sets it."""

import errno
import os
import subprocess
import sys
import tempfile
import threading
import unittest
from pathlib import Path
from typing import Callable

import ccfs

MOUNT = os.environ.get("CCFS_TEST_MOUNT")


class Elsewhere(unittest.TestCase):
    """On any other file system: nothing happens, and it says so."""

    def setUp(self) -> None:
        place = tempfile.TemporaryDirectory()
        self.addCleanup(place.cleanup)
        self.dir = place.name

    def test_functions_raise_enotsup(self) -> None:
        self.assertFalse(ccfs.is_supported(self.dir))
        self.assertFalse(ccfs.is_supported(Path(self.dir, "not", "there").parent))
        calls: list[Callable[[], object]] = [
            lambda: ccfs.get_stream(self.dir),
            lambda: ccfs.new_stream(self.dir),
            lambda: ccfs.set_stream(self.dir, 77),
            lambda: ccfs.name_stream(self.dir, 77, "build"),
            lambda: ccfs.find_stream(self.dir, "build"),
            lambda: ccfs.sync(self.dir),
            lambda: ccfs.sync_volume(self.dir),
            lambda: ccfs.leave_stream(self.dir),
            lambda: ccfs.enter_atomic(self.dir, 7),
            lambda: ccfs.atomic(self.dir).__enter__(),
            lambda: ccfs.begin_atomic(self.dir),
            lambda: ccfs.commit_atomic(self.dir),
            lambda: ccfs.abort_atomic(self.dir),
        ]
        for call in calls:
            with self.assertRaises(OSError) as caught:
                call()
            self.assertEqual(caught.exception.errno, errno.ENOTSUP)
            self.assertEqual(caught.exception.filename, self.dir)
        with open(os.path.join(self.dir, "f"), "w", encoding="ascii") as f:
            for on_file in (ccfs.fbarrier, ccfs.fdatabarrier, ccfs.make_atomic):
                with self.assertRaises(OSError) as caught:
                    on_file(f)
                self.assertEqual(caught.exception.errno, errno.ENOTSUP)
                self.assertEqual(caught.exception.filename, f.name)
            self.assertIn("atomic_files=on", str(caught.exception))
        # Nothing is left of a file that could not be made so, and what was there stays.
        for name, there in (("new", False), ("f", True)):
            path = os.path.join(self.dir, name)
            with self.assertRaises(OSError) as caught:
                ccfs.open_atomic(path)
            self.assertEqual(caught.exception.errno, errno.ENOTSUP)
            self.assertEqual(os.path.exists(path), there)

    def test_the_block_runs(self) -> None:
        before = len(os.listdir("/proc/self/fd"))
        with ccfs.stream(self.dir, ignore_fsync=True) as s:
            Path(self.dir, "f").write_text("x")
            self.assertFalse(s.ordered)
            self.assertIsNone(s.id)
            self.assertRaises(OSError, s.sync)
        self.assertEqual(len(os.listdir("/proc/self/fd")), before)
        self.assertEqual(Path(self.dir, "f").read_text(), "x")

    def test_a_symlink_stands_for_its_file(self) -> None:
        Path(self.dir, "f").write_text("x")
        with tempfile.TemporaryDirectory() as other:
            os.symlink(os.path.join(self.dir, "f"), os.path.join(other, "link"))
            fd = ccfs._open(os.path.join(other, "link"))
            self.addCleanup(os.close, fd)
            self.assertTrue(os.path.samestat(os.fstat(fd), os.stat(self.dir)))

    def test_errors_of_the_path(self) -> None:
        self.assertRaises(FileNotFoundError, ccfs.get_stream, os.path.join(self.dir, "a", "b"))
        self.assertRaises(ValueError, ccfs.set_stream, self.dir, 0)


class Header(unittest.TestCase):
    """The numbers are those of ccfs.h."""

    def test_numbers(self) -> None:
        header = os.environ.get("CCFS_H")
        if header is None:
            self.skipTest("CCFS_H is not set")
        words = Path(header).read_text().split()
        names = {
            "CCFS_IOC_SET_STREAM": ccfs._SET,
            "CCFS_IOC_GET_STREAM": ccfs._GET,
            "CCFS_IOC_NEW_STREAM": ccfs._NEW,
            "CCFS_IOC_STREAM_SYNC": ccfs._SYNC,
            "CCFS_IOC_NAME_STREAM": ccfs._NAME,
            "CCFS_IOC_FIND_STREAM": ccfs._FIND,
            "CCFS_IOC_SYNC_VOLUME": ccfs._SYNC_VOLUME,
            "CCFS_IOC_BARRIER": ccfs._BARRIER,
            "CCFS_BARRIER_DATA": ccfs._BARRIER_DATA,
            "CCFS_IOC_GROUP_BEGIN": ccfs._GROUP_BEGIN,
            "CCFS_IOC_GROUP_COMMIT": ccfs._GROUP_COMMIT,
            "CCFS_IOC_GROUP_ABORT": ccfs._GROUP_ABORT,
            "CCFS_IOC_GROUP_ENTER": ccfs._GROUP_ENTER,
            "CCFS_ORDERED": ccfs._ORDERED,
            "CCFS_IOC_ATOMIC": ccfs._ATOMIC,
            "CCFS_ATOMIC_OPEN": ccfs._ATOMIC_OPEN,
            "CCFS_IOC_SYNCV": ccfs._SYNCV,
            "CCFS_ABI_VERSION": ccfs._VERSION,
            "CCFS_IGNORE_FSYNC": ccfs._IGNORE_FSYNC,
            "CCFS_KEEP_FLAGS": ccfs._KEEP_FLAGS,
            "CCFS_CHOSEN": ccfs._CHOSEN,
        }
        for name, value in names.items():
            at = next(i for i, w in enumerate(words) if w == name and words[i - 1] == "#define")
            self.assertEqual(int(words[at + 1].rstrip("u"), 0), value, name)
        # Every call of the header, and structures of the size that its number states.
        calls = {words[i + 1] for i, w in enumerate(words) if w == "#define" and words[i + 1].startswith("CCFS_IOC_")}
        self.assertEqual(calls, {name for name in names if name.startswith("CCFS_IOC_")})
        sizes = [
            ((ccfs._SET, ccfs._GET, ccfs._NEW, ccfs._SYNC), ccfs._ARG),
            ((ccfs._NAME, ccfs._FIND), ccfs._NAME_ARG),
            ((ccfs._SYNC_VOLUME,), ccfs._SYNC_VOLUME_ARG),
            ((ccfs._BARRIER,), ccfs._BARRIER_ARG),
            ((ccfs._GROUP_BEGIN, ccfs._GROUP_COMMIT, ccfs._GROUP_ABORT, ccfs._GROUP_ENTER), ccfs._GROUP_ARG),
            ((ccfs._ATOMIC,), ccfs._ATOMIC_ARG),
            ((ccfs._SYNCV,), ccfs._SYNCV_ARG),
        ]
        self.assertEqual(sum(len(numbers) for numbers, _ in sizes), len(calls))
        for numbers, structure in sizes:
            for number in numbers:
                self.assertEqual((number >> 16) & 0x3FFF, structure.size, hex(number))


@unittest.skipUnless(MOUNT, "CCFS_TEST_MOUNT is not set")
class Volume(unittest.TestCase):
    def setUp(self) -> None:
        assert MOUNT is not None
        self.dir = MOUNT

    def test_block_nests_and_restores(self) -> None:
        self.assertTrue(ccfs.is_supported(self.dir))
        self.assertTrue(ccfs.get_stream(self.dir).is_default)
        with ccfs.stream(self.dir) as outer:
            self.assertTrue(outer.ordered)
            with ccfs.stream(self.dir, ignore_fsync=True) as inner:
                self.assertNotEqual(inner.id, outer.id)
                self.assertEqual(ccfs.get_stream(self.dir), ccfs.StreamInfo(inner.id or 0, True, True))
                Path(self.dir, "inner").write_text("x")
                inner.sync()
            self.assertEqual(ccfs.get_stream(self.dir), ccfs.StreamInfo(outer.id or 0, False, True))
            with self.assertRaises(ZeroDivisionError), ccfs.stream(self.dir, 4711):
                self.assertEqual(ccfs.get_stream(self.dir).id, 4711)
                1 // 0
            self.assertEqual(ccfs.get_stream(self.dir).id, outer.id)
            self.assertRaises(RuntimeError, outer.__enter__)
        # Where the policy puts the thread, not in the default stream for good.
        self.assertEqual(ccfs.get_stream(self.dir), ccfs.StreamInfo(ccfs.DEFAULT, False, False))
        ccfs.set_stream(self.dir, ccfs.DEFAULT)
        with ccfs.stream(self.dir):
            pass
        self.assertTrue(ccfs.get_stream(self.dir).chosen)
        ccfs.leave_stream(self.dir)
        self.assertFalse(ccfs.get_stream(self.dir).chosen)

    def test_names(self) -> None:
        with ccfs.stream(self.dir) as s:
            ccfs.name_stream(self.dir, 0, "named")
            self.assertEqual(ccfs.find_stream(self.dir, "named"), s.id)
            other = ccfs.new_stream(self.dir)
            with self.assertRaises(FileExistsError):
                ccfs.name_stream(self.dir, other, "named")
            ccfs.name_stream(self.dir, 0, None)
            ccfs.name_stream(self.dir, other, "named")
            self.assertEqual(ccfs.find_stream(self.dir, "named"), other)
        for bad in ("", "17", "default", "a b", "x" * 65):
            with self.assertRaises(OSError) as caught:
                ccfs.find_stream(self.dir, bad)
            self.assertEqual(caught.exception.errno, errno.EINVAL)
        self.assertRaises(FileNotFoundError, ccfs.find_stream, self.dir, "nobodys")

    def test_file_descriptor_and_file(self) -> None:
        with open(Path(self.dir, "f"), "w") as f:
            with ccfs.stream(f) as by_file:
                self.assertEqual(ccfs.get_stream(f.fileno()).id, by_file.id)
                f.write("x")
            ccfs.sync(f)
            ccfs.sync_volume(f)

    def test_barriers(self) -> None:
        with open(Path(self.dir, "barriers"), "w", encoding="ascii") as f:
            for n in range(100):
                f.write(f"{n}\n")
                ccfs.fdatabarrier(f) if n % 2 else ccfs.fbarrier(f.fileno())
            ccfs.fbarrier(f)
            # The barrier has handed over what Python kept.
            self.assertEqual(os.stat(f.fileno()).st_size, 290)
            os.fsync(f.fileno())
        self.assertRaises(OSError, ccfs.fbarrier, 987654)

    def test_atomic_files(self) -> None:
        path = Path(self.dir, "atomic-file")
        path.write_text("before")
        with open(path, "r+", encoding="ascii") as f, open(path, encoding="ascii") as reader:
            with self.assertRaises(OSError) as caught:
                ccfs.make_atomic(reader)
            self.assertEqual(caught.exception.errno, errno.EBADF)
            ccfs.make_atomic(f)
            f.write("synced")
            ccfs.syncv([f])
            f.write(" and not synced")
            f.flush()
            self.assertEqual(path.read_text(), "synced and not synced")
        again = -1
        while again < 0:
            try:
                again = ccfs.open_atomic(path)
            except OSError as e:
                # On a very busy machine the end of the close may take longer than the call waits.
                self.assertEqual(e.errno, errno.EBUSY)
        try:
            self.assertEqual(path.read_text(), "synced")
            other = ccfs.open_atomic(Path(self.dir, "another"))
            os.write(again, b"S")
            os.write(other, b"O")
            ccfs.syncv([again, other])
            os.close(other)
        finally:
            os.close(again)
        self.assertEqual(Path(self.dir, "another").read_text(), "O")
        with self.assertRaises(OSError) as caught:
            ccfs.syncv([])
        self.assertEqual(caught.exception.errno, errno.EINVAL)
        plain = Path(self.dir, "plain")
        with open(plain, "w", encoding="ascii") as file:
            with self.assertRaises(OSError) as caught:
                ccfs.syncv([file])
        self.assertEqual((caught.exception.errno, caught.exception.filename), (errno.EINVAL, str(plain)))
        self.assertIn("file 1 of syncv is not open O_ATOMIC", str(caught.exception))

    def test_groups_without_a_block(self) -> None:
        name = Path(self.dir, "grouped")
        handle = ccfs.begin_atomic(self.dir, timeout=600)
        name.write_text("1")
        ccfs.commit_atomic(self.dir, handle)
        ccfs.begin_atomic(self.dir)
        name.write_text("2")
        ccfs.abort_atomic(self.dir)
        self.assertEqual(name.read_text(), "1")
        with self.assertRaises(OSError) as caught:
            ccfs.commit_atomic(self.dir)
        self.assertEqual(caught.exception.errno, errno.ENOENT)
        self.assertRaises(ValueError, ccfs.begin_atomic, self.dir, timeout=-1)

    def test_atomic(self) -> None:
        a, b = Path(self.dir, "a"), Path(self.dir, "b")
        before = len(os.listdir("/proc/self/fd"))
        for ordered in (False, True):
            with ccfs.atomic(self.dir, ordered=ordered, timeout=600):
                a.write_text("1")
                b.write_text("1")
        self.assertEqual((a.read_text(), b.read_text()), ("1", "1"))
        with self.assertRaises(KeyError), ccfs.atomic(self.dir):
            a.write_text("2")
            b.unlink()
            raise KeyError
        self.assertEqual((a.read_text(), b.read_text()), ("1", "1"))
        with ccfs.atomic(self.dir) as group:
            a.write_text("2")
            group.abort()
            self.assertEqual(a.read_text(), "1")
            b.write_text("after")
        self.assertEqual((a.read_text(), b.read_text()), ("1", "after"))
        with self.assertRaises(OSError) as caught, ccfs.atomic(self.dir), ccfs.atomic(self.dir):
            self.fail("a group in a group")
        self.assertEqual(caught.exception.errno, errno.EBUSY)
        self.assertRaises(ValueError, ccfs.atomic, self.dir, timeout=0)
        self.assertEqual(len(os.listdir("/proc/self/fd")), before)

    def test_atomic_members_and_cancelled(self) -> None:
        name = Path(self.dir, "member")

        def enter(handle: int) -> None:
            ccfs.enter_atomic(self.dir, handle)
            name.write_text("x")

        with ccfs.atomic(self.dir) as group:
            handle = group.handle
            subprocess.run(["sh", "-c", f"echo x >'{name}'-2"], check=True)
            group.abort()
        self.assertFalse(Path(f"{name}-2").exists())
        begun, entered = threading.Event(), threading.Event()

        def owner() -> None:
            nonlocal handle
            with self.assertRaises(ccfs.Cancelled) as cancelled, ccfs.atomic(self.dir) as group:
                handle = group.handle
                begun.set()
                self.assertTrue(entered.wait(120))
                ccfs_abort(group.handle)
            self.assertEqual(cancelled.exception.reason, "asked")

        def ccfs_abort(handle: int) -> None:
            with ccfs._At(self.dir) as fd:
                thread = threading.Thread(target=lambda: ccfs.abort_atomic(fd, handle))
                thread.start()
                thread.join()

        thread = threading.Thread(target=owner)
        thread.start()
        self.assertTrue(begun.wait(120))
        entrant = threading.Thread(target=enter, args=(handle,))
        entrant.start()
        entrant.join()
        self.assertTrue(name.exists())
        entered.set()
        thread.join()
        self.assertFalse(name.exists())

    def test_threads_and_children_inherit(self) -> None:
        program = "import ccfs, sys; print(ccfs.get_stream(sys.argv[1]).id)"
        seen = []
        with ccfs.stream(self.dir) as s:
            thread = threading.Thread(target=lambda: seen.append(ccfs.get_stream(self.dir).id))
            thread.start()
            thread.join()
            child = subprocess.run([sys.executable, "-c", program, self.dir], stdout=subprocess.PIPE, check=True)
            seen.append(int(child.stdout))
            self.assertEqual(seen, [s.id, s.id])


if __name__ == "__main__":
    unittest.main()
