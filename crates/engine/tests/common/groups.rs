//! What tests of atomic groups have in common.
use super::cx;
use ccfs_engine::*;

/// The stream in which groups are begun, and another one.
pub const HOME: u64 = 100;
pub const OTHER: u64 = 200;

pub fn begin(v: &Volume) -> (StreamId, Context) {
    let id = v.group_begin(StreamId(HOME), 0, None).unwrap();
    (
        id,
        Context {
            stream: id,
            ..cx(1)
        },
    )
}

pub fn file(v: &Volume, c: &Context, name: &str, bytes: &[u8]) -> Attr {
    let f = v.mknod(c, ROOT_INO, name.as_bytes(), 0o100644, 0).unwrap();
    if !bytes.is_empty() {
        v.write(c, f.ino, 0, bytes, WriteFlags::default()).unwrap();
    }
    f
}

pub fn read(v: &Volume, ino: Ino) -> Vec<u8> {
    let mut out = Vec::new();
    v.read(ino, 0, 1 << 20, &mut out).unwrap();
    out
}

pub fn errno<T: std::fmt::Debug>(r: std::result::Result<T, Error>) -> i32 {
    r.unwrap_err().errno()
}
