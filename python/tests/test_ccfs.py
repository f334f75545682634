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
            lambda: ccfs.sync(self.dir),
            lambda: ccfs.leave_stream(self.dir),
        ]
        for call in calls:
            with self.assertRaises(OSError) as caught:
                call()
            self.assertEqual(caught.exception.errno, errno.ENOTSUP)
        with open(os.path.join(self.dir, "f"), "w", encoding="ascii") as f:
            for barrier in (ccfs.fbarrier, ccfs.fdatabarrier):
                with self.assertRaises(OSError) as caught:
                    barrier(f)
                self.assertEqual(caught.exception.errno, errno.ENOTSUP)

    def test_the_block_runs(self) -> None:
        before = len(os.listdir("/proc/self/fd"))
        with ccfs.stream(self.dir, ignore_fsync=True) as s:
            Path(self.dir, "f").write_text("x")
            self.assertFalse(s.ordered)
            self.assertIsNone(s.id)
            self.assertRaises(OSError, s.sync)
        self.assertEqual(len(os.listdir("/proc/self/fd")), before)
        self.assertEqual(Path(self.dir, "f").read_text(), "x")

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
            "CCFS_IOC_BARRIER": ccfs._BARRIER,
            "CCFS_BARRIER_DATA": ccfs._BARRIER_DATA,
            "CCFS_ABI_VERSION": ccfs._VERSION,
            "CCFS_IGNORE_FSYNC": ccfs._IGNORE_FSYNC,
            "CCFS_KEEP_FLAGS": ccfs._KEEP_FLAGS,
            "CCFS_CHOSEN": ccfs._CHOSEN,
        }
        for name, value in names.items():
            at = next(i for i, w in enumerate(words) if w == name and words[i - 1] == "#define")
            self.assertEqual(int(words[at + 1].rstrip("u"), 0), value, name)
        self.assertEqual((ccfs._SET >> 16) & 0x3FFF, ccfs._ARG.size)


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

    def test_file_descriptor_and_file(self) -> None:
        with open(Path(self.dir, "f"), "w") as f:
            with ccfs.stream(f) as by_file:
                self.assertEqual(ccfs.get_stream(f.fileno()).id, by_file.id)
                f.write("x")
            ccfs.sync(f)

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
