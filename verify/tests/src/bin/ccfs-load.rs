//! The loads of the crash tests as processes of their own: `ccfs-load [full] DIR RECORD SETTINGS`, where SETTINGS is JSON.
use ccfs_tests::kill9::{BEGUN, full, load};
use std::path::Path;

fn main() {
    let args: Vec<String> = std::env::args().skip(1).collect();
    print!("{BEGUN}");
    let (dir, record, settings) = match &args[..] {
        [word, dir, record, settings] if word == "full" => {
            return full::main(Path::new(dir), Path::new(record), settings);
        }
        [dir, record, settings] => (dir, record, settings),
        _ => {
            eprintln!("usage: ccfs-load [full] DIR RECORD SETTINGS");
            std::process::exit(2);
        }
    };
    let settings = serde_json::from_str(settings).expect("settings");
    let out = load::run(Path::new(dir), &settings);
    let text = serde_json::to_vec(&out).expect("record");
    std::fs::write(record, text).expect("write the record");
}
