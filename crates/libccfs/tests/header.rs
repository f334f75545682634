//! include/ccfs.h against the Rust constants, and against its manual page.
use ccfs::abi;
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::process::Command;

fn here(path: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join(path)
}

/// Prints what the header says; the same numbers in C and in C++.
const PROBE: &str = r#"
#include <ccfs.h>
#include <stddef.h>
#include <stdio.h>
#define SHOW(name, value) printf("%s %llu\n", name, (unsigned long long)(value))
int main(void) {
    SHOW("version", CCFS_ABI_VERSION);
    SHOW("default", CCFS_STREAM_DEFAULT);
    SHOW("ignore_fsync", CCFS_IGNORE_FSYNC);
    SHOW("keep_flags", CCFS_KEEP_FLAGS);
    SHOW("chosen", CCFS_CHOSEN);
    SHOW("set", CCFS_IOC_SET_STREAM);
    SHOW("get", CCFS_IOC_GET_STREAM);
    SHOW("new", CCFS_IOC_NEW_STREAM);
    SHOW("sync", CCFS_IOC_STREAM_SYNC);
    SHOW("name", CCFS_IOC_NAME_STREAM);
    SHOW("find", CCFS_IOC_FIND_STREAM);
    SHOW("name_max", CCFS_STREAM_NAME_MAX);
    SHOW("name_size", sizeof(struct ccfs_stream_name_arg));
    SHOW("name_at_name", offsetof(struct ccfs_stream_name_arg, name));
    SHOW("barrier", CCFS_IOC_BARRIER);
    SHOW("barrier_data", CCFS_BARRIER_DATA);
    SHOW("barrier_size", sizeof(struct ccfs_barrier_arg));
    SHOW("ordered", CCFS_ORDERED);
    SHOW("group_begin", CCFS_IOC_GROUP_BEGIN);
    SHOW("group_commit", CCFS_IOC_GROUP_COMMIT);
    SHOW("group_abort", CCFS_IOC_GROUP_ABORT);
    SHOW("group_enter", CCFS_IOC_GROUP_ENTER);
    SHOW("group_size", sizeof(struct ccfs_group_arg));
    SHOW("group_at_flags", offsetof(struct ccfs_group_arg, flags));
    SHOW("group_at_handle", offsetof(struct ccfs_group_arg, handle));
    SHOW("group_at_timeout", offsetof(struct ccfs_group_arg, timeout_ms));
    SHOW("atomic", CCFS_IOC_ATOMIC);
    SHOW("atomic_open", CCFS_ATOMIC_OPEN);
    SHOW("atomic_size", sizeof(struct ccfs_atomic_arg));
    SHOW("atomic_at_token", offsetof(struct ccfs_atomic_arg, token));
    SHOW("syncv", CCFS_IOC_SYNCV);
    SHOW("syncv_size", sizeof(struct ccfs_syncv_arg));
    SHOW("syncv_at_tokens", offsetof(struct ccfs_syncv_arg, tokens));
    SHOW("sync_volume", CCFS_IOC_SYNC_VOLUME);
    SHOW("sync_volume_size", sizeof(struct ccfs_sync_volume_arg));
    SHOW("size", sizeof(struct ccfs_stream_arg));
    SHOW("at_version", offsetof(struct ccfs_stream_arg, version));
    SHOW("at_flags", offsetof(struct ccfs_stream_arg, flags));
    SHOW("at_id", offsetof(struct ccfs_stream_arg, id));
    SHOW("stream_size", sizeof(ccfs_stream_t));
    return 0;
}
"#;

/// Where a field stands in a structure of the ABI.
macro_rules! at {
    ($type:ident, $field:ident) => {
        std::mem::offset_of!(abi::$type, $field) as u64
    };
}

#[test]
fn the_header_has_the_numbers_of_the_daemon() {
    let expected: BTreeMap<&str, u64> = [
        ("version", abi::VERSION.into()),
        ("default", abi::STREAM_DEFAULT),
        ("ignore_fsync", abi::STREAM_IGNORE_FSYNC.into()),
        ("keep_flags", abi::STREAM_KEEP_FLAGS.into()),
        ("chosen", abi::STREAM_CHOSEN.into()),
        ("set", abi::IOC_SET_STREAM.into()),
        ("get", abi::IOC_GET_STREAM.into()),
        ("new", abi::IOC_NEW_STREAM.into()),
        ("sync", abi::IOC_STREAM_SYNC.into()),
        ("name", abi::IOC_NAME_STREAM.into()),
        ("find", abi::IOC_FIND_STREAM.into()),
        ("name_max", abi::STREAM_NAME_MAX as u64),
        ("name_size", size_of::<abi::StreamNameArg>() as u64),
        ("name_at_name", at!(StreamNameArg, name)),
        ("barrier", abi::IOC_BARRIER.into()),
        ("barrier_data", abi::BARRIER_DATA.into()),
        ("barrier_size", size_of::<abi::BarrierArg>() as u64),
        ("ordered", abi::GROUP_ORDERED.into()),
        ("group_begin", abi::IOC_GROUP_BEGIN.into()),
        ("group_commit", abi::IOC_GROUP_COMMIT.into()),
        ("group_abort", abi::IOC_GROUP_ABORT.into()),
        ("group_enter", abi::IOC_GROUP_ENTER.into()),
        ("group_size", size_of::<abi::GroupArg>() as u64),
        ("group_at_flags", at!(GroupArg, flags)),
        ("group_at_handle", at!(GroupArg, handle)),
        ("group_at_timeout", at!(GroupArg, timeout_ms)),
        ("atomic", abi::IOC_ATOMIC.into()),
        ("atomic_open", abi::ATOMIC_OPEN.into()),
        ("atomic_size", size_of::<abi::AtomicArg>() as u64),
        ("atomic_at_token", at!(AtomicArg, token)),
        ("syncv", abi::IOC_SYNCV.into()),
        ("syncv_size", size_of::<abi::SyncvArg>() as u64),
        ("syncv_at_tokens", at!(SyncvArg, tokens)),
        ("sync_volume", abi::IOC_SYNC_VOLUME.into()),
        ("sync_volume_size", size_of::<abi::SyncVolumeArg>() as u64),
        ("size", size_of::<abi::StreamArg>() as u64),
        ("at_version", at!(StreamArg, version)),
        ("at_flags", at!(StreamArg, flags)),
        ("at_id", at!(StreamArg, id)),
        ("stream_size", size_of::<u64>() as u64),
    ]
    .into();
    let place = tempfile::tempdir().unwrap();
    for (compiler, source, standard) in [
        ("cc", "probe.c", "-std=c99"),
        ("c++", "probe.cc", "-std=c++11"),
    ] {
        let (source, program) = (place.path().join(source), place.path().join(compiler));
        std::fs::write(&source, PROBE).unwrap();
        let made = Command::new(compiler)
            .args([standard, "-Wall", "-Wextra", "-Wpedantic", "-Werror", "-I"])
            .arg(here("include"))
            .arg("-o")
            .args([&program, &source])
            .output();
        let made = match made {
            Err(e) => {
                println!("skipped: {compiler}: {e}");
                continue;
            }
            Ok(made) => made,
        };
        assert!(made.status.success(), "{compiler}: {made:?}");
        let said = Command::new(&program).output().unwrap();
        let said = String::from_utf8(said.stdout).unwrap();
        let seen: BTreeMap<&str, u64> = said
            .lines()
            .filter_map(|l| l.split_once(' '))
            .map(|(name, value)| (name, value.parse().unwrap()))
            .collect();
        assert_eq!(seen, expected, "{compiler}");
    }
}

/// What the program `ccfs` and the libraries alone ask for.
const NOT_FOR_PROGRAMS: [&str; 11] = [
    // Of direct calls, which are more than an ioctl.
    "IOC_DIRECT_BEGIN",
    "IOC_DIRECT_CALL",
    "IOC_FREEZE",
    "IOC_GET_STREAM_OF_PROCESS",
    "IOC_GROUP_CHANGES",
    "IOC_RESIZE",
    "IOC_SCRUB",
    "IOC_STATUS",
    "IOC_THAW",
    "IOC_TRACE",
    "IOC_TUNE",
];

#[test]
fn the_header_has_every_call_of_programs() {
    let abi = std::fs::read_to_string(here("../client/src/abi.rs")).unwrap();
    let mut numbers: Vec<&str> = abi
        .lines()
        .filter_map(|l| l.strip_prefix("pub const ")?.split(':').next())
        .filter(|name| name.starts_with("IOC_") && !NOT_FOR_PROGRAMS.contains(name))
        .collect();
    let text = std::fs::read_to_string(here("include/ccfs.h")).unwrap();
    let mut defined: Vec<&str> = text
        .lines()
        .filter_map(|l| l.strip_prefix("#define CCFS_")?.split(' ').next())
        .filter(|name| name.starts_with("IOC_"))
        .collect();
    numbers.sort_unstable();
    defined.sort_unstable();
    assert!(numbers.len() >= 10);
    assert_eq!(numbers, defined);
}

/// One line of words.
fn words(text: &str) -> String {
    text.split_whitespace().collect::<Vec<_>>().join(" ")
}

fn page() -> String {
    let pages = [
        "setstream.3",
        "fbarrier.3",
        "cfs_begin.3",
        "ccfs_open_atomic.3",
        "ccfs_session_begin.3",
    ]
    .map(|page| here("../../docs/man").join(page));
    let text = pages
        .map(|page| std::fs::read_to_string(page).unwrap())
        .concat();
    let plain = text.replace("\\-", "-").replace("\\fB", "");
    words(&plain.replace("\\fR", ""))
}

/// Comments of the header that describe functions and flags, and the declarations.
fn header() -> (Vec<String>, Vec<String>) {
    let text = std::fs::read_to_string(here("include/ccfs.h")).unwrap();
    let (functions, _) = text.split_once("/* The ioctls under").unwrap();
    let comments = functions.split("/*").skip(1).flat_map(|part| {
        let comment = part.split("*/").next().unwrap();
        let paragraphs = comment.split("\n *\n");
        let clean = paragraphs.map(|p| words(&format!("\n{p}").replace("\n * ", "\n")));
        clean.collect::<Vec<_>>()
    });
    let declarations = functions.lines().filter(|l| {
        l.ends_with(");") && ["stream", "barrier", "cfs_"].iter().any(|w| l.contains(w))
    });
    (
        comments.filter(|c| c.len() > 60).collect(),
        declarations.map(words).collect(),
    )
}

#[test]
fn the_manual_page_says_what_the_header_says() {
    let page = page();
    let (comments, declarations) = header();
    assert!(
        comments.len() >= 10 && declarations.len() >= 12,
        "{comments:?} {declarations:?}"
    );
    // The header's first words and its build note have their own form in the page.
    let own = ["ccfs.h - ", "Link with "];
    let texts = comments
        .iter()
        .filter(|c| !own.iter().any(|o| c.starts_with(o)));
    for text in texts.chain(&declarations) {
        assert!(page.contains(text.as_str()), "in no manual page: {text}");
    }
}

/// No function without a declaration, no declaration without a function.
#[test]
fn every_function_is_declared() {
    let sources = ["src/exports.rs", "src/direct.rs"];
    let source = sources.map(|s| std::fs::read_to_string(here(s)).unwrap());
    let source = source.concat();
    let mut defined: Vec<&str> = source
        .lines()
        .filter_map(|l| {
            let rest = l.split_once("extern \"C\" fn ")?.1;
            rest.split('(').next()
        })
        .collect();
    let text = std::fs::read_to_string(here("include/ccfs.h")).unwrap();
    let mut declared: Vec<&str> = text
        .lines()
        .filter(|l| l.ends_with(");"))
        .filter_map(|l| l.split('(').next()?.split(' ').next_back())
        .map(|name| name.trim_start_matches('*'))
        .collect();
    defined.sort_unstable();
    declared.sort_unstable();
    assert!(defined.len() >= 14);
    assert_eq!(defined, declared);
}
