//! The checks: what runs under each kernel.

use super::{OLDEST, Outcome, Version, cuts, memory, own};

/// Kernels of a run in which none is named; the newest comes to them.
pub const USUAL: [Version; 5] = [
    Version(5, 10),
    Version(6, 1),
    Version(6, 12),
    Version(6, 16),
    Version(6, 18),
];

/// One row of the table.
pub struct Check {
    /// Its name in results and arguments.
    pub name: &'static str,
    /// Its row.
    pub title: &'static str,
    pub parts: &'static [Part],
    /// Why it cannot be on the kernel that runs.
    pub lacks: fn() -> Option<String>,
}

/// What a check runs.
pub enum Part {
    /// Tests of a test program (`PACKAGE/TARGET`), each by its whole name (all of them if none is named), with variables of the environment.
    Tests(
        &'static str,
        &'static [&'static str],
        &'static [(&'static str, &'static str)],
    ),
    /// A function here, which panics if something is wrong.
    Own(fn() -> Outcome),
}
use Part::{Own, Tests};

/// In the order in which they run. An emulated machine is slow: `PERCENT` makes the long ones shorter.
pub const CHECKS: &[Check] = &[
    check("refused", "refused by name", &[Own(own::refused)]).where_(below_oldest),
    check(
        "mount",
        "mkfs, mount, unmount; plain ext4 afterwards",
        &[Tests(
            "ccfs/life",
            &[
                "umount_leaves_plain_ext4_and_no_loop_device",
                "mount_as_the_helper_of_mount_8",
                "signals_commit_and_unmount",
            ],
            &[],
        )],
    ),
    check("block-device", "block devices", &[Own(own::block_device)]),
    check(
        "dev",
        "requests over /dev/fuse",
        &[Tests(
            "ccfs-fuse/mounted",
            &[],
            &[("CCFS_TEST_TRANSPORT", "dev")],
        )],
    ),
    check(
        "uring",
        "requests over io_uring",
        &[Tests(
            "ccfs-fuse/mounted",
            &[],
            &[("CCFS_TEST_TRANSPORT", "uring")],
        )],
    )
    .where_(no_uring),
    check(
        "sync",
        "sync calls, then `kill -9` of the daemon",
        &[Tests(
            "ccfs-tests/sync_calls",
            &[
                "what_each_sync_call_makes_durable",
                "a_sync_in_flight_ends_with_its_daemon",
            ],
            &[],
        )],
    ),
    check(
        cuts::CHECK,
        "sync calls, then a power cut",
        &[Own(cuts::in_guest)],
    ),
    check(
        "memory",
        "sync calls while memory is short",
        &[Own(memory::little_memory)],
    ),
    check(
        "streams",
        "streams, and who inherits them",
        &[
            Tests("ccfs-tests/streams", &[], &[]),
            Tests(
                "ccfs-fuse/streams",
                &[
                    "streams_are_entered_and_inherited",
                    "another_user_stays_out",
                ],
                &[],
            ),
            Tests(
                "ccfs-tests/identity",
                &[
                    "streams_are_inherited_exactly",
                    "streams_are_inherited_by_way_of_proc",
                    "su_and_setuid_programs_leave_the_stream",
                    "process_id_namespaces",
                    "users_have_streams_of_their_own",
                    "edges::exec_beside_threads_in_other_streams",
                ],
                &[],
            ),
        ],
    ),
    check(
        "groups",
        "groups (`ccfs atomic`)",
        &[Tests(
            "ccfs-tests/atomic",
            &[
                "command::all_or_nothing",
                "abort_restores_everything",
                "commit_and_kill",
                "members::members_and_others",
                "members::conflicts",
            ],
            &[],
        )],
    ),
    check(
        "atomic-files",
        "failure-atomic files, with power cuts",
        &[Tests(
            "ccfs-tests/atomic",
            &[
                "files::a_crash_leaves_the_last_synced_content",
                "files::power_cuts",
            ],
            &[("CCFS_TEST_CUTS", "4")],
        )],
    ),
    check(
        "kill9",
        "`kill -9` of the daemon, and recovery",
        &[
            Tests(
                "ccfs-tests/kill9",
                &["kill9_a"],
                &[("CCFS_TEST_ROUNDS", "3"), ("CCFS_TEST_SLOWER", "10")],
            ),
            Tests(
                "ccfs/stop",
                &["a_daemon_that_is_killed_while_it_unmounts_ends"],
                &[],
            ),
        ],
    ),
    check(
        "users",
        "users' mounts (fusermount3)",
        &[Tests("ccfs/user_mount", &[], &[])],
    ),
    check(
        "mappings",
        "mappings",
        &[Tests(
            "ccfs-tests/posix",
            &["posix"],
            &[("CCFS_TEST_ONLY", "mmap,stores")],
        )],
    ),
    check(
        "direct",
        "O_DIRECT, asynchronous writes",
        &[
            Tests(
                "ccfs-tests/posix",
                &["posix"],
                &[("CCFS_TEST_ONLY", "direct")],
            ),
            Tests(
                "ccfs-tests/synchronous_writes",
                &[
                    "completed_asynchronous_writes_are_durable",
                    "changes_under_chattr_s_and_d_are_durable",
                ],
                &[],
            ),
        ],
    ),
    check(
        "sqlite",
        "SQLite",
        &[
            Tests("ccfs-tests/programs", &["sqlite"], PERCENT),
            Tests("ccfs-tests/sqlite", &["one_connection"], &[]),
        ],
    ),
    check(
        "git",
        "Git",
        &[Tests("ccfs-tests/programs", &["git"], PERCENT)],
    ),
    check(
        "random",
        "random operations against a model",
        &[Tests(
            "ccfs-tests/exercise",
            &["file_mounted_small", "file_mounted_large", "tree_mounted"],
            PERCENT,
        )],
    ),
    check(
        "posix",
        "the other checks of [posix.md](posix.md)",
        &[Tests(
            "ccfs-tests/posix",
            &["posix"],
            &[("CCFS_TEST_ONLY", "!mmap,stores,direct,link_limit,no_space")],
        )],
    ),
    check(
        "carried",
        "what the kernel carries to FUSE",
        &[Tests(
            "ccfs/kernel",
            &["what_the_kernel_carries", "file_handles_work"],
            &[],
        )],
    ),
    check(
        "direct-calls",
        "direct calls (libccfs)",
        &[
            Tests("ccfs-fuse/direct", &[], &[]),
            Tests("ccfs-fuse/direct_births", &[], &[]),
            Tests("ccfs-fuse/direct_heads", &[], &[]),
            Tests("ccfs-fuse/direct_links", &[], &[]),
            Tests("ccfs-fuse/direct_listed", &[], &[]),
            Tests("ccfs-fuse/direct_programs", &[], &[]),
            Tests("ccfs-fuse/direct_taken", &[], &[]),
        ],
    ),
    check(
        "nameless",
        "nameless files (O_TMPFILE)",
        &[Own(own::nameless_files)],
    ),
    check(
        "birth",
        "times of birth (statx)",
        &[Own(own::times_of_birth)],
    ),
    check(
        "log",
        "nothing in the kernel's log",
        &[Own(own::kernel_log)],
    ),
];

const PERCENT: &[(&str, &str)] = &[("CCFS_TEST_PERCENT", "5")];

/// Those that `make test` runs under one old kernel.
pub const QUICK: &[&str] = &["block-device", "sync", "power", "nameless", "birth", "log"];

/// Kernels that no package offers: tried once, by hand, on other machines. What was seen then, by the name of the check.
pub const BY_HAND: &[(Version, &[(&str, &str)])] = &[
    (
        Version(5, 15),
        &[
            ("mount", "yes, by hand"),
            ("nameless", "no: Linux 6.1"),
            ("birth", "no: Linux 6.8"),
        ],
    ),
    (
        Version(6, 8),
        &[("mount", "yes, by hand"), ("birth", "yes, by hand")],
    ),
];

const fn check(name: &'static str, title: &'static str, parts: &'static [Part]) -> Check {
    let lacks = too_old;
    Check {
        name,
        title,
        parts,
        lacks,
    }
}

impl Check {
    const fn where_(mut self, lacks: fn() -> Option<String>) -> Check {
        self.lacks = lacks;
        self
    }
}

fn too_old() -> Option<String> {
    (Version::running() < OLDEST).then(|| format!("Linux {OLDEST}"))
}

/// For the one check that is about kernels that are too old.
fn below_oldest() -> Option<String> {
    (Version::running() >= OLDEST).then(|| "served".to_string())
}

fn no_uring() -> Option<String> {
    too_old().or_else(|| (!has_rings()).then(|| "Linux 6.14".to_string()))
}

/// Whether the kernel that runs has FUSE over io_uring.
pub fn has_rings() -> bool {
    std::path::Path::new("/sys/module/fuse/parameters/enable_uring").exists()
}

/// The check of that name.
pub fn named(name: &str) -> Option<&'static Check> {
    CHECKS.iter().find(|c| c.name == name)
}
