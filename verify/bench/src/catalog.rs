//! All experiments.
use crate::apps::{DirectSqlite, Git, LEVELDB, LMDB, Sqlite, Together};
use crate::engine::Engine;
use crate::experiment::{
    Experiment, Group, LIBRARY, Plain, STREAMS, by_library, everywhere, in_streams, on_disks,
    with_large_directories,
};
use crate::growth::Growth;
use crate::latency::{Figure4, Table3, Update};
use crate::recovery::Recovery;
use crate::unmodified::job::Job;
use crate::unmodified::{Tree, Work};
use crate::workload::library::{Act, Calls};
use crate::workload::{Call, Kind, Micro, Scale, Threaded};
use clap::ValueEnum;

/// Single calls are measured for this share of the time.
const MICRO_SHARE: f64 = 0.3;

/// What is measured by the calls of the library, beside the same by system calls.
const DIRECT: [(&str, Act, usize, &str); 6] = [
    ("createfiles-1", Act::Small, 1, "a create, write or close"),
    ("createfiles-4", Act::Small, 4, "a create, write or close"),
    ("create", Act::Create, 1, "a new empty file"),
    ("append-4k", Act::Append, 1, "4 KiB appended, in memory"),
    (
        "overwrite-4k",
        Act::Overwrite,
        1,
        "4 KiB overwritten, in memory",
    ),
    ("unlink", Act::Unlink, 1, "an unlink"),
];
/// The names that `--only` means by one: that of a workload, or else all that begin so.
pub fn named(only: &str, all: &[Box<dyn Experiment>]) -> Vec<String> {
    let names = || all.iter().map(|e| e.name());
    match names().find(|name| name == only) {
        Some(whole) => vec![whole],
        None => names().filter(|name| name.starts_with(only)).collect(),
    }
}

/// Everything that is measured at a scale, in the order in which it is measured and reported.
pub fn all(scale: Scale) -> Vec<Box<dyn Experiment>> {
    let mut all: Vec<Box<dyn Experiment>> = Vec::new();
    for kind in Kind::value_variants() {
        all.push(Box::new(personality(*kind)));
    }
    for call in Call::ALL {
        all.push(Box::new(micro(call, false)));
        if call.reads() {
            all.push(Box::new(micro(call, true)));
        }
    }
    for call in [Call::Create, Call::Append, Call::Fsync] {
        for threads in [1, 2, 4] {
            all.push(Box::new(threaded(call, threads)));
        }
    }
    for (name, act, threads, op) in DIRECT {
        all.push(Box::new(Plain {
            name: format!("direct/{name}"),
            group: Group::Direct,
            op,
            on_models: false,
            share: if act == Act::Small { 1.0 } else { MICRO_SHARE },
            make: Box::new(move |scale: Scale, variant: &str| {
                Box::new(Calls::new(act, threads, variant == LIBRARY, scale))
            }),
            variants: by_library,
        }));
    }
    all.push(Box::new(DirectSqlite { wal: false }));
    all.push(Box::new(DirectSqlite { wal: true }));
    for job in Job::value_variants() {
        all.push(Box::new(Work(*job)));
    }
    for tree in Tree::ALL {
        all.push(Box::new(tree));
    }
    for engine in Engine::all() {
        all.push(Box::new(engine));
    }
    for update in [
        Update::Nothing,
        Update::Append,
        Update::Truncate,
        Update::Overwrite,
    ] {
        all.push(Box::new(Table3(update)));
    }
    for update in [Update::Truncate, Update::Overwrite] {
        all.push(Box::new(Figure4(update)));
    }
    all.push(Box::new(Git));
    all.push(Box::new(Sqlite { wal: false }));
    all.push(Box::new(LEVELDB));
    all.push(Box::new(Sqlite { wal: true }));
    all.push(Box::new(LMDB));
    all.push(Box::new(Together));
    for growth in Growth::all(scale) {
        all.push(Box::new(growth));
    }
    for recovery in Recovery::all(scale) {
        all.push(Box::new(recovery));
    }
    all
}

fn personality(kind: Kind) -> Plain {
    Plain {
        name: kind.name().into(),
        group: Group::Personalities,
        op: "an open, create, whole read, write, fsync, close, stat or delete",
        on_models: true,
        share: 1.0,
        make: Box::new(move |scale, _| kind.make(scale)),
        variants: everywhere,
    }
}

fn micro(call: Call, cold: bool) -> Plain {
    let when = if cold { "-cold" } else { "" };
    Plain {
        name: format!("micro/{}{when}", call.name()),
        group: Group::Micro,
        op: call.op(),
        // Of the others what counts elsewhere is in other workloads.
        on_models: cold && call == Call::Files,
        share: MICRO_SHARE,
        make: Box::new(move |scale: Scale, _: &str| Box::new(Micro::new(call, cold, scale))),
        variants: match call {
            Call::Readdir => with_large_directories,
            _ if cold => on_disks,
            _ => everywhere,
        },
    }
}

fn threaded(call: Call, threads: usize) -> Plain {
    Plain {
        name: format!("threads/{}-{threads}", call.name()),
        group: Group::Threads,
        op: call.op(),
        // Elsewhere the disk is not waited for.
        on_models: call == Call::Fsync,
        share: MICRO_SHARE,
        make: Box::new(move |scale: Scale, variant: &str| {
            let mut inner = Micro::new(call, false, scale);
            inner.threads = threads;
            // Several files on one volume, and no more than one would have.
            inner.bytes = (inner.bytes / 4).max(1 << 20);
            Box::new(Threaded {
                inner,
                streams: variant == STREAMS,
            })
        }),
        variants: in_streams,
    }
}
