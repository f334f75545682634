#!/usr/bin/env python3
"""kv.py leveldb|rocksdb|lmdb DIR FIRST COUNT [nosync]: puts keys `kN`, each synced, and marks each; nosync (LMDB): neither."""
import ctypes
import os
import subprocess
import sys

kind, path, first, count = sys.argv[1], sys.argv[2].encode(), int(sys.argv[3]), int(sys.argv[4])
nosync = sys.argv[5:] == ["nosync"]
pointer, size, byref = ctypes.c_void_p, ctypes.c_size_t, ctypes.byref


def mark(key):
    if os.environ.get("CCFS_CRASH_MARK") and not nosync:
        subprocess.run([os.environ["CCFS"], "crash", "mark", "key " + key], check=True)


def library(names):
    for name in names:
        try:
            return ctypes.CDLL(name)
        except OSError:
            pass
    said = subprocess.run(["/sbin/ldconfig", "-p"], capture_output=True, text=True).stdout
    return ctypes.CDLL(next(w for w in said.split() if w.startswith(names[-1])))


def through_leveldb(lib, prefix):
    def call(name, result, *args):
        function = getattr(lib, prefix + "_" + name)
        function.restype = result
        return function(*args)

    options, writes = call("options_create", pointer), call("writeoptions_create", pointer)
    call("options_set_create_if_missing", None, pointer(options), 1)
    call("writeoptions_set_sync", None, pointer(writes), 1)
    fault = ctypes.c_char_p()
    db = call("open", pointer, pointer(options), path, byref(fault))
    assert not fault.value, fault.value
    for n in range(first, first + count):
        key, value = b"k%d" % n, b"v" * 500
        call("put", None, pointer(db), pointer(writes), key, size(len(key)), value, size(len(value)), byref(fault))
        assert not fault.value, fault.value
        mark(key.decode())
    call("close", None, pointer(db))


def through_lmdb(lib):
    class Val(ctypes.Structure):
        _fields_ = [("size", size), ("data", ctypes.c_char_p)]

    def must(code):
        assert code == 0, code

    os.makedirs(path, exist_ok=True)
    env = pointer()
    must(lib.mdb_env_create(byref(env)))
    must(lib.mdb_env_set_mapsize(env, size(8 << 20)))
    must(lib.mdb_env_open(env, path, 0x10000 if nosync else 0, 0o644))
    for n in range(first, first + count):
        key, value = b"k%d" % n, b"v" * 500
        txn, db = pointer(), ctypes.c_uint()
        must(lib.mdb_txn_begin(env, None, 0, byref(txn)))
        must(lib.mdb_dbi_open(txn, None, 0, byref(db)))
        must(lib.mdb_put(txn, db, byref(Val(len(key), key)), byref(Val(len(value), value)), 0))
        must(lib.mdb_txn_commit(txn))
        mark(key.decode())
    lib.mdb_env_close(env)


if kind == "lmdb":
    through_lmdb(library(["liblmdb.so.0"]))
else:
    through_leveldb(library(["lib%s.so.1d" % kind, "lib%s.so" % kind]), kind)
