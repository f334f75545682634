//! Directed sequences: one per known hard spot of parallel commits in ext4's structures, and the classic ones.
use crate::config::config;
use crate::setting::Setting;

const USUAL: &[&str] = &["1k", "4k"];
const ALL: &[&str] = &["1k", "4k", "tiny", "2k", "128", "nocsum", "ext3", "64m"];

/// An access control list of six entries.
const LIST: &str = "1:7 2:6:1000 4:5 16:7 32:0";

/// A sequence that breaks a naive design.
#[derive(Clone, Debug)]
pub struct Spot {
    /// 1 to 28; 0 for those without a number.
    pub number: u32,
    pub title: &'static str,
    /// For `Source::Text`.
    pub text: String,
    /// Names of the volumes to try it on.
    pub volumes: &'static [&'static str],
}

impl Spot {
    /// How the volume is mounted.
    pub fn setting(&self, volume: &str) -> Setting {
        let config = config(volume).unwrap_or(&crate::config::CONFIGS[0]);
        let setting = Setting {
            streams: 4,
            ..Setting::new(config)
        };
        match self.number {
            // A full log, and little memory.
            17 => Setting {
                dirty_limit: 64 << 10,
                cache_bytes: 256 << 10,
                ..setting
            },
            _ if self.title.starts_with("barriers") => Setting {
                gather: 3,
                ..setting
            },
            _ => setting,
        }
    }
}

/// `line` with `#` replaced by each number of the range.
fn repeat(range: std::ops::Range<usize>, line: &str) -> String {
    range
        .map(|i| line.replace('#', &i.to_string()) + ";")
        .collect()
}

/// A sequence that is a text for `Source::Text`.
fn spot(number: u32, title: &'static str, volumes: &'static [&'static str], text: String) -> Spot {
    Spot {
        number,
        title,
        text,
        volumes,
    }
}

/// A long name.
fn long(c: &str, n: usize) -> String {
    c.repeat(n)
}

/// All of them. Their order is that of the places of the standard exploration.
pub fn spots() -> Vec<Spot> {
    [
        barriers(),
        structures(),
        records(),
        groups_and_atomic_files(),
        attributes(),
        used_volumes(),
        mounts(),
        classics(),
    ]
    .concat()
}

/// Order without durability.
fn barriers() -> Vec<Spot> {
    vec![
        spot(0, "barriers: a chain in one stream, appended and overwritten between", USUAL, "A create f; A write f 0 9000; A fbarrier f; A write f 100 3000; A fbarrier f; A append f 5000; A fbarrier f; A create g; A write g 0 4096; A fbarrier g; A write f 0 4096; A fdatabarrier f; A write g 0 4096; A fbarrier g; A write g 4096 8192; A fbarrier g; A unlink f; A fbarrier g; A create f; A fbarrier f; A write f 0 100; A fsync f; A append f 100; A fbarrier f; A append g 100; A fbarrier g".into()),
        spot(0, "barriers: what others did to the file comes before what the stream does next", USUAL, "A create f; A create g; A syncfs; B append f 5000; A fbarrier f; A append g 100; A fsync g; B append f 100; C setxattr f user.a 20; B create b; A fbarrier f; A create h; A tick; B append f 100; B append f 4000; A fdatabarrier f; A append g 9000; A fbarrier g; A append g 10; A streamsync; C append f 10; A fbarrier f; A streamsync; C mkdir d; C create d/x; B fbarrier d; B create y; B fsync y".into()),
        spot(0, "barriers: bundles of streams that depend on each other", USUAL, "A create f; B create g; A fbarrier f; B append f 3000; A append g 3000; B fbarrier g; A fbarrier f; B append g 100; A append g 100; A fbarrier g; B append f 100; B fbarrier f; A append f 100; A fsync f; C append g 10; C fbarrier f; C create z; C fbarrier z; A append f 100; C append z 9000; C fbarrier z; C append z 10; C fsync z; A fbarrier f; A append g 20; A fbarrier g; B unlink g; B fbarrier f; B append f 10; B fsync f".into()),
        spot(0, "barriers: a sync makes all that they closed durable", USUAL, "A create f; A write f 0 9000; A fbarrier f; A append f 100; A fbarrier f; A append f 100; A fbarrier f; A streamsync; B create b; B write b 0 5000; B fbarrier b; B append b 10; B fbarrier b; B append b 10; B fbarrier b; B fsync b; B append b 3000; B fbarrier b; B append b 3000; B fbarrier b; B append b 3000; B fbarrier b; A syncfs; A checkpoint; B write b 0 9000; B fbarrier b; B truncate b 10; B fbarrier b; B append b 9000; B fbarrier b; B fsync b".into()),
    ]
}

/// A volume that grows. They lie behind all other first places, so that those keep theirs.
pub fn growing() -> Vec<Spot> {
    const VOLUMES: &[&str] = &["growing", "growing-meta", "growing-ext3"];
    vec![
        spot(0, "growing: within the last group, by groups and over a block of descriptors", VOLUMES, "A create a; A write a 0 9000; A syncfs; A write a 9000 3000; A grow 400; B create b; B write b 0 30000; B fsync b; A grow 3000; A create c; A write c 0 20000; B checkpoint; A fsync c; A grow 6000; B append b 40000; B fsync b; A unlink a; A streamsync".into()),
        spot(0, "growing: two in a row, with commits that are not home, orphans and a full old volume", VOLUMES, "A create p; A write p 0 4000000; A write p 4000000 4000000; A syncfs; A create a; A write a 0 9000; A open a %h; A unlink a; B create b; B write b 0 5000; B fsync b; A grow 2000; A grow 7000; C create c; C write c 0 2000000; C fsync c; A close %h; A tick; A create d; A append d 100000; B syncfs; A trim; A unlink p; A syncfs".into()),
        spot(0, "growing: new groups get directories and inodes, and lose them", VOLUMES, format!("A grow 9000; {} A syncfs; {} B streamsync; B checkpoint; A grow 1500; A tick", repeat(0..24, "A mkdir d#; A create d#/f; A write d#/f 0 3000"), repeat(0..24, "B unlink d#/f; B rmdir d#"))),
        spot(0, "growing: large groups of blocks of 4 KiB", &["growing-4k"], "A create a; A write a 0 9000; A fsync a; A grow 80000; A create b; A write b 0 90000; A fsync b; A grow 150000; B create c; B write c 0 90000; B fsync c; A checkpoint; A unlink b; A streamsync".into()),
    ]
}

/// What two streams change in one structure of ext4.
fn structures() -> Vec<Spot> {
    vec![
        spot(1, "Block images with parallel commits: A's inode and B's lie in one block; B alone becomes durable", USUAL, "A create a; A write a 0 100; B create b; B write b 0 100; B streamsync; A write a 100 100; B write b 100 100; B streamsync; A streamsync".into()),
        spot(2, "Holes in the log: A's large transaction is torn, B's behind it had been synced", USUAL, format!(
        "{} A tick; B create b; B fsync b; {} A tick; B write b 0 100; B fsync b",
        repeat(0..30, "A create a#; A setxattr a# user.x 100"),
        repeat(0..30, "A write a# 0 600")
    )),
        spot(3, "Bitmaps: A frees a bit, B sets its neighbour", USUAL, "A create a; A write a 0 20000; B create b; B write b 0 20000; A syncfs; A unlink a; B append b 20000; B create c; B fsync b; B write c 0 4000; B fsync c".into()),
        spot(4, "Counters: entries and subdirectories by two streams, checkpoints between", USUAL, "A mkdir d; A syncfs; A mkdir d/a; B mkdir d/b; B streamsync; B checkpoint; A mkdir d/c; B rmdir d/b; B streamsync; B checkpoint; A rmdir d/a; A streamsync; B mkdir d/e; B checkpoint; B streamsync".into()),
        spot(5, "Group initialisation: both streams take inodes from a group that nobody used", &["1k"], format!(
            "{} A syncfs; {} B streamsync; {}",
            repeat(0..40, "A mkdir d#"),
            repeat(0..40, "A create d#/a; B create d#/b"),
            repeat(0..10, "A write d#/a 0 900; B unlink d#/b")
        )),
        {
            let long = long("x", 100);
            spot(6, "Slots: B uses the rest of a slot whose front A took; a directory block that A added", USUAL, format!(
        "A mkdir d; A create d/{long}; A create d/z; A syncfs; A unlink d/{long}; A tick; A create d/a; B create d/bbbbbb; B fsync d; {} B create d/after; B streamsync",
        repeat(0..20, &format!("A create d/#{long}"))
    ))
        },
        {
            let long = long("y", 120);
            spot(7, "A leaf of a hash tree splits while another stream's insertions into it are uncommitted", USUAL, format!(
        "A mkdir d; {} A syncfs; {} B streamsync; {} B streamsync; A tick",
        repeat(0..25, &format!("A create d/#{long}")),
        repeat(25..40, &format!("A create d/#{long}; B create d/b#{long}")),
        repeat(0..20, &format!("A unlink d/#{long}; B create d/c#{long}"))
    ))
        },
        {
            let long = long("w", 120);
            spot(8, "A slot is freed and used again inside one transaction, then its leaf splits", USUAL, format!(
        "A mkdir d; {} A syncfs; {} {} B streamsync; A streamsync",
        repeat(0..16, &format!("A create d/#{long}")),
        repeat(0..8, &format!("A unlink d/#{long}; A create d/n#{long}")),
        repeat(0..12, &format!("B create d/b#{long}"))
    ))
        },
        spot(9, "rmdir by B of a directory that A emptied, also where A's changes cancel out", USUAL, "A mkdir d; A create d/x; A syncfs; A unlink d/x; B rmdir d; B streamsync; A mkdir e; A syncfs; A create e/y; A unlink e/y; B rmdir e; B streamsync; A create z; A streamsync".into()),
        spot(10, "Two names of one inode are removed by two streams", USUAL, "A create a; A write a 0 5000; A link a b; A syncfs; A unlink a; B unlink b; B streamsync; B create c; B write c 0 5000; B fsync c; A create d; A streamsync".into()),
        spot(11, "The last close comes before the unlink is committed", USUAL, "A create a; A write a 0 30000; A syncfs; A open a %h; A unlink a; B create b; B write b 0 100; B fsync b; A close %h; B write b 100 30000; B fsync b; A tick; B create c; B write c 0 30000; B fsync c".into()),
        spot(12, "Blocks are freed and used again in the next transaction, which writes them directly", &["tiny"], "A create a; A write a 0 700000; A syncfs; A truncate a 0; A create b; A write b 0 700000; B create c; B write c 0 700000; B fsync c; A fsync b; B unlink c; B streamsync; A write a 0 700000; A fsync a".into()),
        {
            let long = long("v", 150);
            spot(13, "A directory block was in the log, is freed, and becomes file data", &["tiny"], format!(
            "A mkdir d; {} A syncfs; {} A rmdir d; A syncfs; B create f; B write f 0 900000; B fsync f; A checkpoint; B write f 0 5000; B fsync f",
            repeat(0..30, &format!("A create d/#{long}")),
            repeat(0..30, &format!("A unlink d/#{long}"))
        ))
        },
    ]
}

/// The log, what its records say of data and space, and what several streams do to one file or directory.
fn records() -> Vec<Spot> {
    vec![
        spot(14, "Data under a checksum in one record, overwritten or freed by a later one that is already home", USUAL, "A create a; A write a 0 4096; A fsync a; A write a 0 100; B create b; B streamsync; A fsync a; A checkpoint; A write a 0 4096; A fsync a; A unlink a; A streamsync; B write b 0 4096; B fsync b; B checkpoint; A create c; A write c 0 4096; A fsync c; B fsync b".into()),
        spot(15, "Checkpoint writes are torn at sectors", USUAL, format!(
        "{} A checkpoint; {} A checkpoint; {} A checkpoint; B create z; B streamsync",
        repeat(0..12, "A create a#; B create b#"),
        repeat(0..12, "A unlink a#; B setxattr b# user.q 50"),
        repeat(0..12, "B unlink b#")
    )),
        spot(16, "The tail of the log: A is idle with an uncommitted change while B fills the log several times", &["1k"], format!(
        "A create idle; A write idle 0 5000; {}",
        repeat(
            0..60,
            "B create f#; B write f# 0 30000; B write f# 100 20000; B fsync f#; B write f# 5 7000; B fsync f#; ?B unlink f#"
        )
    )),
        spot(17, "The log is full while an operation holds directory locks: nothing hangs, also with a small dirty limit", &["1k"], format!(
        "A mkdir d; {} A syncfs; {} B streamsync",
        repeat(
            0..60,
            "A create d/a#; A setxattr d/a# user.x 300; B create d/b#; B write d/b# 0 9000"
        ),
        repeat(
            0..60,
            "C rename d/a# d/c#; A write d/b# 10 9000; C unlink d/c#"
        )
    )),
        spot(18, "A transaction is sealed but not allocated when the next one truncates", USUAL, "A create a; A write a 0 50000; B link a b; A truncate a 1000; A append a 300; B fsync b; A write a 0 100; B chmod b 600; A truncate a 0; B fsync b; A fsync a".into()),
        spot(19, "Appending to a partly filled block, a crash, and extension: lost bytes never come back", USUAL, "A create a; A write a 0 700; A fsync a; A append a 2000; A tick; A truncate a 800; A truncate a 9000; A fsync a; A append a 10; A truncate a 300; B link a b; A truncate a 5000; B fsync b; A write a 6000 10; A fsync a".into()),
        spot(20, "ENOSPC with space in uncommitted frees; a preallocated file on a full volume is overwritten", &["tiny"], format!(
            "A create p; A allocate p 0 300000; A create a; A write a 0 900000; A syncfs; {} A unlink a; B create b; B write b 0 900000; B fsync b; {} B fsync p",
            repeat(0..2, "A create x#; A write x# 0 400000"),
            repeat(0..20, "B write p #000 3000")
        )),
        spot(21, "Large attributes, shared or not, dropped by two streams", USUAL, "A create a; A setxattr a user.big 600; B create b; B setxattr b user.big 600; A syncfs; A removexattr a user.big; B removexattr b user.big; B streamsync; A setxattr b user.big 500; B unlink b; B streamsync; A setxattr a user.c 600; A streamsync".into()),
        spot(22, "Two renames that would make a loop without one another", USUAL, "A mkdir p; A mkdir p/q; A syncfs; A rename p/q q; B rename p q/p; B streamsync; A rename q/p p; C rename q p/q; C streamsync; A create z; A streamsync".into()),
        spot(23, "Times that go backwards, entry changes around them", USUAL, "A mkdir d; A create d/f; A syncfs; A create d/a; A utimes d 1000; B create d/b; B streamsync; A utimes d 500; B unlink d/b; A utimes d/f 7; B streamsync; B setxattr d user.t 4; A streamsync".into()),
        spot(24, "sync over many streams", USUAL, format!(
        "{} A syncfs; {} B syncfs; {}",
        repeat(0..4, "# create f#; # write f# 0 2000"),
        repeat(0..4, "# append f# 3000"),
        repeat(0..4, "# truncate f# 10")
    )),
        spot(25, "Two streams write one page; each version stays with its transaction", USUAL, "A create a; A write a 0 4096; B write a 100 100; A write a 200 100; B write a 300 100; B fsync a; A write a 0 4096; B truncate a 50; A append a 4000; A tick; B write a 60 8; B fsync a".into()),
    ]
}

/// Atomic groups, and files that are open O_ATOMIC.
fn groups_and_atomic_files() -> Vec<Spot> {
    vec![
        spot(0, "A group over several files and directories beside another stream in the same ones: committed, then another one taken back", USUAL, "A mkdir d; A create d/a; A write d/a 0 9000; A create e; A syncfs; A begin; A write d/a 100 5000; A create d/b; A write d/b 0 3000; B create d/c; B write d/c 0 700; B fsync d/c; A unlink e; A rename d/b f; A mkdir g; B tick; A commit; B create h; B fsync h; A begin; A write d/a 0 12000; A rename d/a a2; A rmdir g; A unlink f; A setxattr d user.x 30; B create d/k; B syncfs; B tick; B checkpoint; A abort; B streamsync; A write d/a 0 10; A streamsync".into()),
        spot(0, "What another stream does to an open group's files ends the group, and nothing else is lost with it", USUAL, "A create a; A write a 0 5000; A streamsync; A write a 5000 700; A begin; A write a 0 100; A create b; A unlink a; B create c; B write c 0 2000; B create b2; B create a; B fsync c; A create z; A streamsync; A begin; A truncate z 5000; A link z y; B chmod z 600; B fsync z; A begin; A mkdir q; A create q/x; B tick; B rename z q2; B syncfs; A order; B create q/y; B streamsync; A fsync q".into()),
        spot(0, "Groups that are ordered, not durable, between other operations of their stream", USUAL, "A create a; A begin; A append a 3000; A create b; A order; A append b 500; A begin; A rename b c; A append a 100; A order; A append c 10; B create d; B fsync d; A fsync c; A begin; A unlink a; A order; A create e; B tick; A streamsync".into()),
        spot(0, "O_ATOMIC files: written, cut, punched, renamed and closed while others sync everything", USUAL, "A create f; A write f 0 9000; A atomic f; A write f 100 6000; B syncfs; A truncate f 3000; B chmod f 600; B streamsync; A fsync f; A write f 0 20000; A punch f 1000 9000; B tick; B rename f g; B fsync g; A append g 700; C syncfs; A release g; B create h; B fsync h; A write g 0 100; A streamsync; C atomic g; C allocate g 0 30000; C write g 5000 8000; C tick; C truncate g 0; A setxattr g user.x 30; C fsync g; C append g 4000; C unlink g; C syncfs".into()),
        spot(0, "syncv: changes of several O_ATOMIC files by two streams survive together", USUAL, "A create a; A write a 0 5000; A create b; A create c; A write c 0 30000; A atomic a; A atomic b; B atomic c; A write a 0 5000; A write b 0 3000; B write c 1000 20000; B truncate c 25000; A syncv a b c; A write a 100 100; B write b 0 9000; B create d; B write d 0 300; B syncv b a; A append c 900; A write a 0 7000; C tick; A syncv c a; C write a 0 10; C ignored a; A release a; C write b 0 4000; C fbarrier b; C streamsync; B release b; A link c e; A write c 0 1000; B checkpoint; A syncv c; A release c".into()),
        spot(0, "O_ATOMIC files and groups beside each other", USUAL, "A create f; A write f 0 3000; A create g; A atomic f; A write f 0 5000; B begin; B chmod f 640; B create x; B append f 100; A fsync f; A write f 10 10; A begin; A write f 0 700; A write g 0 700; A abort; A fsync f; B begin; B rename f h; B write g 0 50; B commit; A append h 3000; A fsync h; A truncate h 100; C syncfs; A release h; A begin; A write h 0 2000; C atomic h; A order; C atomic h; C write h 0 100; C fsync h".into()),
    ]
}

/// Modes, flags, access lists and other attributes.
fn attributes() -> Vec<Spot> {
    vec![
        spot(0, "Flags of a directory, and what another stream makes in it", USUAL, "A mkdir d; A mkdir e; A syncfs; A setflags d c0; B symlink d/l 137; B streamsync; A setflags e 10; A streamsync; A setflags e 0; B create e/f; B fsync e/f; C begin; C setflags d 8; B create d/g; B fsync d/g".into()),
        spot(0, "A directory's mode and its access list, changed by two streams", &["1k", "4k", "128"], format!("A mkdir d; A acl d access {LIST}; A mkdir e; A syncfs; A removexattr d system.posix_acl_access; B chmod d 701; B streamsync; A chmod e 2755; B acl e access {LIST}; B streamsync; B chmod e 640; A acl d default {LIST}; B create d/f; B streamsync; A streamsync")),
        spot(0, "Whiteouts inherit from their directory, also what another stream gave to it", &["1k", "128", "ext3"], format!("A mkdir d; A setattr d 2755 - 5 - -; A acl d default {LIST}; A setflags d c8; A create d/f; A syncfs; A whiteout d/f g; B create d/h; B streamsync; A chown d 3 9; B whiteout d/h d/i; B streamsync")),
        spot(0, "Bits that changes of content kill, copies, names and attributes of special files", USUAL, "A create f; A chmod f 6755; A write f 0 3000; A chmod f 4711; A syncfs; B write f 100 5000 kill; C link f g; C chmod g 6755; A setattr f - - - 10 - kill; B streamsync; C create h; C copy f 0 h 700 9; B copy h 0 f 5 400; A symlink l 90; B link l m; A chown l 5 6; B setxattr m trusted.t 40; A fsync f; C unlink l; B utimes m 77; C streamsync".into()),
    ]
}

/// On volumes that the kernel has used before.
fn used_volumes() -> Vec<Spot> {
    vec![
        spot(0, "A block of attributes that three files share, dropped and changed by two streams", &["used"], "A removexattr x1 user.same; B removexattr x2 user.same; B streamsync; A setxattr x3 user.b 90; B tick; A unlink x3; B create f; B setxattr f user.same 500; B write f 0 3000; B fsync f; A checkpoint; A setxattr x1 user.same 500; A streamsync".into()),
        spot(0, "The last two that share a block of attributes lose it together, and it becomes data", &["used"], "A unlink x1; A setxattr x2 user.same 300; B unlink x3; B streamsync; A tick; B checkpoint; B create f; B write f 0 9000; B fsync f; A unlink x2; A create g; A write g 0 4000; A fsync g".into()),
        spot(0, "Files with block maps beside files with extents: read, cut, punched, overwritten, freed", &["used"], "A write b 100000 9000; B write a 29000 9000; B fsync a; A truncate b 120000; A punch b 5000 90000; B write hole 8000 3000; B fsync hole; A fsync b; A write b 300000 2000; B unlink a; B create c; B write c 0 40000; B fsync c; A checkpoint; A truncate b 0; A write b 0 20000; A streamsync; B truncate hole 2000; B append hole 30000; B streamsync".into()),
        spot(0, "A linear directory of several blocks gets its tree while two streams work in it", &["used"], "A create old/new; B unlink old/0-xxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxx; B streamsync; A rename old/1-xxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxx top; B create old/other; B link a old/a; A fsync old; B checkpoint; B rename old/new old/2-xxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxx; A unlink top; B streamsync".into()),
    ]
}

/// Mounts and recoveries, on many kinds of volumes.
fn mounts() -> Vec<Spot> {
    vec![
        spot(26, "The feature bit: crash at every event of mount and unmount", ALL, "A create a; A write a 0 3000".into()),
        spot(27, "Volumes with block maps, small inodes, without checksums", ALL, "A create a; A write a 0 30000; A write a 400000 3000; A syncfs; A punch a 5000 9000; B create b; B write b 0 20000; B fsync b; A truncate a 20000; A allocate a 0 60000; A fsync a; B zero b 100 9000; B unlink a; B streamsync; A mkdir d; A symlink d/s 100; A setxattr b user.a 30".into()),
        spot(28, "Files that were open without a name at the crash; recovery is killed, and killed again", &["1k", "4k", "tiny"], "A create a; A write a 0 50000; A open a %a; A tmpfile %t; A write %t 0 30000; A syncfs; A unlink a; B create b; B fsync b; A write %a 100 9000; A streamsync; A link %t t; A append t 3000; B tmpfile %u; B write %u 0 9000; B streamsync; A close %a; A tick; B close %u; A fsync t".into()),
    ]
}

/// What breaks many file systems.
fn classics() -> Vec<Spot> {
    vec![
        spot(0, "create write rename", USUAL, "A create f; A write f 0 3000; A syncfs; A create t; A write t 0 5000; A rename t f; A create t; A write t 0 700; A rename t f; B fsync f; A create t; A write t 0 9000; A fsync t; A rename t f".into()),
        spot(0, "append and overwrite under commit", USUAL, "A create f; A append f 1000; A tick; A append f 1000; A write f 500 1000; A tick; A append f 5000; A fsync f; A write f 0 7000; A tick; A write f 3000 200; A write f 100 20; A fdatasync f; A append f 1".into()),
        spot(0, "log wraps", &["1k"], repeat(
        0..90,
        "A create f#; A write f# 0 9000; A fsync f#; B write f# 100 9000; B fsync f#; A unlink f#; A streamsync",
    )),
        spot(0, "large transactions", &["1k"], format!(
        "{} A syncfs; {} B streamsync; A checkpoint",
        repeat(0..400, "A create f#; A setxattr f# user.name 200"),
        repeat(0..400, "B rename f# g#; A chmod g# 600")
    )),
        spot(0, "recovery of two large transactions at once, one of them torn", &["1k"], format!(
            "A mkdir d; A syncfs; {} {} C syncfs",
            repeat(0..120, "A create d/a#; A setxattr d/a# user.name 400"),
            repeat(0..40, "B create b#; B setxattr b# user.name 400")
        )),
        spot(0, "a full volume", &["tiny"], format!(
            "{} B fsync f0; A unlink f1; B create g; B write g 0 300000; B fsync g; A truncate f2 0; B write g 300000 300000; B fsync g",
            repeat(0..16, "A create f#; A write f# 0 120000; A write f# 120000 120000")
        )),
        spot(0, "moves of directories and of names, by two streams", USUAL,
            "A mkdir p; A mkdir q; A mkdir p/a; A mkdir p/b; A mkdir p/c; A mkdir p/d; A mkdir q/e; A syncfs; A rename p/a q/a; \
             B noreplace p/b q/b; A exchange p/c q/a; B whiteout p/d q/d; C rename q/b p/b; C streamsync; B streamsync; \
             A create q/e/x; A syncfs; A unlink q/e/x; B rename p/b q/e; B streamsync; A mkdir r; B setxattr r user.a 9; \
             C removexattr r user.a; B create r/f; C streamsync".into()),
        spot(0, "moves to below what another stream moved, and an exchange of two such", USUAL,
            "A mkdir p; A mkdir p/q; A mkdir p/q/r; A mkdir p/q/r/s; A mkdir t; A mkdir t/u; A mkdir t/u/v; A mkdir w; A syncfs; \
             A rename p/q q; B rename p q/r/s/p; B streamsync; C rename t/u u; A rename w t/w; A exchange t u/v; A streamsync; \
             B rename u q/u; C rename q/r r; B streamsync; A create r/s/x; A streamsync".into()),
        spot(0, "moves that replace nothing, or leave a whiteout, to below what another stream moved", USUAL,
            "A mkdir p; A mkdir p/q; A mkdir t; A mkdir u; A syncfs; A rename p/q q; B noreplace t q/t; C whiteout u q/u; \
             C streamsync; B streamsync; A create q/u/x; A streamsync".into()),
        spot(0, "moves of directories that lie on nobody's way, in any order", USUAL,
            "A mkdir a; A mkdir a/x; A mkdir b; A mkdir b/y; A mkdir c; A mkdir c/z; A mkdir d; A syncfs; A rename a/x x; \
             B rename b/y d/y; C rename c/z d/z; C streamsync; B exchange d/y a; A rename x c/x; A streamsync; C rename d/z z; \
             B streamsync; C rename z a/z; C streamsync".into()),
        spot(0, "rename over an open file", USUAL, "A create f; A write f 0 20000; A syncfs; A open f %f; A create g; A write g 0 100; A rename g f; B create b; B streamsync; A write %f 0 5000; A fsync f; A close %f; A tick; B write b 0 20000; B fsync b".into()),
        spot(0, "deep trees come and go", USUAL, "A mkdir a; A mkdir a/b; A mkdir a/b/c; A create a/b/c/f; A syncfs; A rename a/b/c c; B create c/g; A rmdir a/b; A rmdir a; B fsync c/g; A mkdir a; A rename c a/c; B unlink a/c/f; B unlink a/c/g; C rmdir a/c; C streamsync".into()),
    ]
}
