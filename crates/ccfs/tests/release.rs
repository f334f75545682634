//! The files of a release, from programs that are built already: `make dist` builds them in a chroot and then does the same.
mod common;
use common::{Place, run, tool};
use serde_json::Value;
use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

const COMMIT: &str = "0123456789abcdef0123456789abcdef01234567";
/// Seconds since 1970, of a day in the past.
const EPOCH: &str = "1700000000";

fn top() -> PathBuf {
    let here = Path::new(env!("CARGO_MANIFEST_DIR"));
    here.ancestors().nth(2).unwrap().to_path_buf()
}

/// Packs the programs under test into a folder.
fn pack(out: &str) {
    let mut command = Command::new(top().join("packaging/pack.sh"));
    command
        .args([env!("CARGO_BIN_EXE_ccfs"), out, COMMIT])
        .env("SOURCE_DATE_EPOCH", EPOCH)
        .env("DEB_LEVEL", "0")
        .env("CARGO_NET_OFFLINE", "true")
        .stdin(Stdio::null());
    let ran = run(&mut command);
    assert_eq!(ran.code, 0, "{}{}", ran.out, ran.err);
}

/// Name and content of each file.
fn files(dir: &str) -> BTreeMap<String, Vec<u8>> {
    let entries = fs::read_dir(dir).unwrap().map(Result::unwrap);
    entries
        .map(|e| {
            let name = e.file_name().into_string().unwrap();
            (name, fs::read(e.path()).unwrap())
        })
        .collect()
}

/// What is missing for this test; `None`: nothing.
fn missing() -> Option<String> {
    let library = Path::new(env!("CARGO_BIN_EXE_ccfs")).with_file_name("libccfs.so");
    if !library.exists() {
        return Some("the library is not built: cargo build --release -p ccfs-libccfs".to_string());
    }
    let tools = ["dpkg-shlibdeps", "dpkg-deb", "strip", "python3", "xz"];
    let lacks = |name: &&str| {
        let script = format!("command -v {name}");
        run(Command::new("sh").args(["-c", &script])).code != 0
    };
    let tool = tools.into_iter().find(lacks);
    tool.map(|name| format!("there is no {name}"))
}

/// `NAME VERSION` of everything in the bill of materials, with its scope and its SHA-256.
fn listed(bom: &Value) -> BTreeMap<String, (String, Option<String>)> {
    let components = bom["components"].as_array().unwrap();
    let text = |value: &Value| value.as_str().unwrap().to_string();
    components
        .iter()
        .map(|c| {
            assert!(c["licenses"][0]["expression"].is_string(), "{c}");
            let sum = c["hashes"][0]["content"].as_str().map(str::to_string);
            let name = format!("{} {}", text(&c["name"]), text(&c["version"]));
            (name, (text(&c["scope"]), sum))
        })
        .collect()
}

/// `NAME VERSION` of the packages whose sources a program names: by lines of code, or where it can panic.
fn named_in(program: &[u8]) -> BTreeSet<String> {
    let text = String::from_utf8_lossy(program);
    let paths = text.split("/index.crates.io-").skip(1);
    paths
        .filter_map(|path| {
            // As a path, or as a directory's name with a NUL behind it.
            let name = path.split('/').nth(1)?;
            let name = name.split(|c: char| c.is_control()).next()?;
            // The version begins at the first hyphen before a digit that is followed by dots.
            let is_version =
                |v: &str| v.starts_with(|c: char| c.is_ascii_digit()) && v.contains('.');
            let cut = name
                .match_indices('-')
                .find(|(at, _)| is_version(&name[at + 1..]))?
                .0;
            Some(format!("{} {}", &name[..cut], &name[cut + 1..]))
        })
        .collect()
}

/// Checksums of Cargo.lock by `NAME VERSION`.
fn locked() -> BTreeMap<String, Option<String>> {
    let text = fs::read_to_string(top().join("Cargo.lock")).unwrap();
    let field = |block: &str, name: &str| {
        let line = block
            .lines()
            .find_map(|l| l.strip_prefix(&format!("{name} = \"")));
        line.map(|value| value.trim_end_matches('"').to_string())
    };
    let blocks = text.split("[[package]]").skip(1);
    blocks
        .map(|block| {
            let (name, version) = (field(block, "name"), field(block, "version"));
            let package = format!("{} {}", name.unwrap(), version.unwrap());
            (package, field(block, "checksum"))
        })
        .collect()
}

fn check_bill_of_materials(bom: &[u8]) {
    let bom: Value = serde_json::from_slice(bom).unwrap();
    assert_eq!(bom["bomFormat"], "CycloneDX");
    assert_eq!(bom["metadata"]["timestamp"], "2023-11-14T22:13:20Z");
    assert!(bom["metadata"].to_string().contains(COMMIT));
    let (listed, locked) = (listed(&bom), locked());
    for (package, (_, sum)) in listed.iter().filter(|(p, _)| !p.starts_with("rust-std ")) {
        assert_eq!(locked.get(package), Some(sum), "{package}");
    }
    let sources = listed.values().filter(|(_, sum)| sum.is_some()).count();
    assert!(sources > 60 && listed.len() < locked.len(), "{listed:?}");
    // The programs themselves say what is in them.
    let beside = |name| Path::new(env!("CARGO_BIN_EXE_ccfs")).with_file_name(name);
    for program in ["ccfs", "ccfs-bench", "ccfs-crash", "libccfs.so"].map(beside) {
        let Ok(bytes) = fs::read(&program) else {
            continue;
        };
        let named = named_in(&bytes);
        assert!(named.iter().any(|p| p.starts_with("rustix ")), "{named:?}");
        for package in named {
            let scope = listed.get(&package).map(|(scope, _)| scope.as_str());
            assert_eq!(
                scope,
                Some("required"),
                "{package} in {}",
                program.display()
            );
        }
    }
    // What each needs is listed, too.
    let names = |v: &Value| v.as_str().unwrap().to_string();
    let components = bom["components"].as_array().unwrap();
    let known: BTreeSet<String> = components.iter().map(|c| names(&c["bom-ref"])).collect();
    for edge in bom["dependencies"].as_array().unwrap() {
        for to in edge["dependsOn"].as_array().unwrap() {
            assert!(known.contains(&names(to)), "{to}");
        }
    }
}

/// What a user of another distribution does.
fn check_tarball(place: &Place, tarball: &str) {
    tool("tar", &["-xf", tarball, "-C", &place.text("")]);
    let name = Path::new(tarball).file_name().unwrap().to_str().unwrap();
    let tree = place.text(name.strip_suffix(".tar.xz").unwrap());
    for file in [
        "bin/ccfs",
        "share/man/man8/ccfs.8",
        "share/man/man3/setstream.3",
        "share/bash-completion/completions/ccfs",
        "lib/systemd/system/ccfs@.service",
        "LICENSE-MIT",
        "THIRD-PARTY",
        "docs/install.md",
    ] {
        assert!(Path::new(&tree).join(file).exists(), "{file} is missing");
    }
    let notices = fs::read_to_string(format!("{tree}/THIRD-PARTY")).unwrap();
    for part in [
        "\nclap 4",
        "mimalloc",
        "The standard library of Rust",
        "AS IS",
    ] {
        assert!(notices.contains(part), "{part} is not in THIRD-PARTY");
    }
    let root = place.text("root");
    let script = |name: &str, args: &[&str]| {
        let mut command = Command::new(format!("{tree}/scripts/{name}"));
        command.args(args).env("DESTDIR", &root).current_dir(&tree);
        let ran = run(command.stdin(Stdio::null()));
        assert_eq!(ran.code, 0, "{name}: {}{}", ran.out, ran.err);
    };
    script("install.sh", &["install", "bin/ccfs"]);
    script("install-libs.sh", &["lib"]);
    let installed = format!("{root}/usr/local/bin/ccfs");
    let version = tool(&installed, &["--version"]);
    assert_eq!(version.trim(), concat!("ccfs ", env!("CARGO_PKG_VERSION")));
    let pc = fs::read_to_string(format!("{root}/usr/local/lib/pkgconfig/ccfs.pc")).unwrap();
    assert!(pc.contains(env!("CARGO_PKG_VERSION")), "{pc}");
    script("install.sh", &["uninstall", "bin/ccfs"]);
    let left = tool("find", &[&root, "-not", "-type", "d"]);
    assert_eq!(left, "");
}

#[test]
fn a_release_is_packed_the_same_way_twice() {
    if let Some(why) = missing() {
        return println!("skipped: {why}");
    }
    let place = Place::new();
    let (first, second) = (place.text("first"), place.text("second"));
    pack(&first);
    pack(&second);
    let made = files(&first);
    let again = files(&second);
    let names: Vec<&String> = made.keys().collect();
    assert_eq!(names.len(), 7, "{names:?}");
    for (name, bytes) in &made {
        assert!(
            again.get(name) == Some(bytes),
            "two packings of {name} differ"
        );
    }

    let verify = |dir: &str| {
        let mut command = Command::new("sha256sum");
        run(command
            .args(["-c", "--strict", "SHA256SUMS"])
            .current_dir(dir))
    };
    let verified = verify(&first);
    assert_eq!(verified.code, 0, "{}{}", verified.out, verified.err);
    assert_eq!(verified.out.lines().count(), names.len() - 1);
    let find = |part: &str| names.iter().find(|n| n.contains(part)).unwrap().as_str();
    let package = format!("{second}/{}", find("libccfs1"));
    fs::write(&package, b"another").unwrap();
    assert_ne!(verify(&second).code, 0);

    check_bill_of_materials(&made[find(".cdx.json")]);
    check_tarball(&place, &format!("{first}/{}", find(".tar.xz")));
    let contents = tool("dpkg-deb", &["-c", &format!("{first}/{}", find("ccfs_"))]);
    assert!(contents.contains("/usr/share/doc/ccfs/THIRD-PARTY.gz"));
    // All times are the release's: none of this day.
    let other = contents.lines().find(|l| !l.contains(" 2023-11-1"));
    assert_eq!(other, None);
}

#[test]
fn programs_that_need_a_newer_glibc_are_not_released() {
    let check = |max: &str, file: &str| {
        let script = top().join("packaging/glibc.sh");
        run(Command::new(script).args([max, file]))
    };
    let program = env!("CARGO_BIN_EXE_ccfs");
    let good = check("99.9", program);
    assert_eq!(good.code, 0, "{}", good.err);
    assert!(good.out.starts_with("ccfs: glibc 2."), "{}", good.out);
    let old = check("2.10", program);
    assert_eq!(old.code, 1);
    assert!(old.err.contains("2.10 is promised"), "{}", old.err);
    // A text is no program that needs nothing.
    assert_ne!(check("99.9", "/etc/passwd").code, 0);
}
