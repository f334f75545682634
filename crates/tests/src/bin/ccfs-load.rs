//! The load of the crash tests as a process of its own: `ccfs-load DIR RECORD SETTINGS`, where SETTINGS is JSON.
use ccfs_tests::kill9::load;
use std::path::Path;

fn main() {
    let args: Vec<String> = std::env::args().skip(1).collect();
    let [dir, record, settings] = &args[..] else {
        eprintln!("usage: ccfs-load DIR RECORD SETTINGS");
        std::process::exit(2);
    };
    let settings = serde_json::from_str(settings).expect("settings");
    let out = load::run(Path::new(dir), &settings);
    let text = serde_json::to_vec(&out).expect("record");
    std::fs::write(record, text).expect("write the record");
}
