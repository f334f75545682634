//! The figures of the ccfs paper (Pillai et al., FAST'17), beside which ours are shown.

/// A workload's figures on ext4 data=journal, ext4 data=ordered and ccfs.
pub struct Row {
    pub workload: &'static str,
    pub journal: f64,
    pub ext4: f64,
    pub ccfs: f64,
}

const fn row(workload: &'static str, journal: f64, ext4: f64, ccfs: f64) -> Row {
    Row {
        workload,
        journal,
        ext4,
        ccfs,
    }
}

/// Figure 5(a): operations (seqwrite: MB) per second on the hard disk.
pub const FIGURE_5A: [Row; 6] = [
    row("varmail", 847.5, 701.38, 680.83),
    row("randwrite", 58.0, 58.0, 58.0),
    row("createfiles", 3044.0, 8796.0, 8718.0),
    row("seqwrite", 28.9, 87.8, 87.5),
    row("fileserver", 71.4, 123.66, 125.91),
    row("webserver", 13212.0, 13244.0, 13196.0),
];

/// Figure 5(b): on the SSD.
pub const FIGURE_5B: [Row; 6] = [
    row("varmail", 6212.0, 5875.0, 5823.0),
    row("randwrite", 3646.0, 4118.0, 3597.0),
    row("createfiles", 8294.0, 11064.0, 10787.0),
    row("seqwrite", 88.9, 268.0, 269.0),
    row("fileserver", 531.0, 1132.0, 1111.0),
    row("webserver", 13437.0, 13614.0, 13552.0),
];

/// Figure 5(c): KB written per operation.
pub const FIGURE_5C: [Row; 3] = [
    row("varmail", 3.42, 2.91, 2.98),
    row("randwrite", 8.1, 4.1, 8.1),
    row("createfiles", 12.22, 5.53, 5.49),
];

/// Table 3, on the hard disk: ext4, ccfs in one stream, ccfs in two streams.
pub struct Sync {
    pub update: &'static str,
    pub latency_s: [f64; 3],
    pub sync_mb: [f64; 3],
    pub total_mb: [f64; 3],
}

pub const TABLE_3: [Sync; 3] = [
    Sync {
        update: "append",
        latency_s: [0.08, 1.28, 0.08],
        sync_mb: [0.03, 100.04, 0.03],
        total_mb: [100.19, 100.18, 100.20],
    },
    Sync {
        update: "truncate",
        latency_s: [0.07, 1.28, 0.05],
        sync_mb: [0.03, 100.04, 0.03],
        total_mb: [0.18, 100.21, 0.20],
    },
    Sync {
        update: "overwrite",
        latency_s: [0.07, 1.27, 0.07],
        sync_mb: [0.03, 100.04, 0.03],
        total_mb: [100.19, 300.72, 100.20],
    },
];

/// Table 4 and its text: how many times as fast as safe ext4 the program is on ccfs, as it is and without the syncs that order makes needless.
pub struct App {
    pub workload: &'static str,
    pub what: &'static str,
    pub as_it_is: Option<f64>,
    pub without_syncs: Option<f64>,
}

pub const TABLE_4: [App; 3] = [
    App {
        workload: "table4/git",
        what: "Git: add and commit of a large tree",
        as_it_is: None,
        without_syncs: Some(80.0),
    },
    App {
        workload: "table4/sqlite",
        what: "SQLite: rollback journal, a row a transaction",
        as_it_is: Some(1.28),
        without_syncs: Some(685.0),
    },
    App {
        workload: "table4/leveldb",
        what: "LevelDB: fillrandom",
        as_it_is: Some(1.0),
        without_syncs: Some(5.0),
    },
];
