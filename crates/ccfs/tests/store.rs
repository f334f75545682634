//! Volumes on other machines: every command with the name of a store, one writer, servers that are killed and started again, hosts that die.
mod common;
use ccfs_testkit::Rng;
use ccfs_testkit::stores::{Ceph, Host, Server, skips};
use common::{Place, ccfs_with, is_mounted, needs_mounts, refused, tool, wait_until};
use std::fs;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

/// Skips where there can be no mounts, or a server is not installed.
macro_rules! needs {
    ($programs:expr) => {
        needs_mounts!();
        if skips($programs) {
            return;
        }
    };
}

fn ok(args: &[&str]) -> String {
    let ran = ccfs_with(args);
    assert_eq!(ran.code, 0, "{args:?}: {}{}", ran.out, ran.err);
    ran.out
}

fn json(args: &[&str]) -> serde_json::Value {
    serde_json::from_str(&ok(args)).unwrap()
}

/// What is mounted here is unmounted, also where a test fails.
struct Mounted(String);

impl Drop for Mounted {
    fn drop(&mut self) {
        if is_mounted(&self.0) {
            let _ = ccfs_with(&["umount", &self.0]);
            let _ = std::process::Command::new("umount")
                .args(["-l", &self.0])
                .output();
        }
    }
}

fn mounted(store: &str, dir: &str, options: &str) -> Mounted {
    ok(&["mount", "-o", options, store, dir]);
    Mounted(dir.into())
}

/// An image of so many MiB, and qemu-nbd over it.
fn qemu_nbd(place: &Place, mib: u64) -> (PathBuf, Server) {
    let image = empty_image(place, mib);
    let server = Server::qemu_nbd(&place.path("."), &image);
    (image, server)
}

fn empty_image(place: &Place, mib: u64) -> PathBuf {
    let image = place.path("far.img");
    fs::File::create(&image)
        .unwrap()
        .set_len(mib << 20)
        .unwrap();
    image
}

/// A host mounts the volume, and syncs a file.
fn begins(host: &mut Host, store: &str, dir: &str) {
    let (code, said) = host.ccfs(&format!("mount -o commit=1 '{store}' {dir}"));
    assert_eq!(code, 0, "{said}");
    let one = format!("echo one >{dir}/one && sync {dir}/one");
    assert_eq!(host.run(&one).0, 0);
}

/// Every command that takes an image file or a device takes a store.
fn every_command(place: &Place, store: &str, kind: &str, writer: &str) {
    let dir = place.subdir("mnt");
    assert_eq!(
        json(&["mkfs", "--json", "-L", "far", store])["target"],
        store
    );
    refused(
        "mkfs",
        &ccfs_with(&["mkfs", store]),
        1,
        &["holds", "--force"],
    );
    fs::write(place.path("a"), "hello\n").unwrap();
    ok(&["put", &place.text("a"), &format!("{store}:/a")]);
    assert_eq!(ok(&["cat", &format!("{store}:/a")]), "hello\n");
    ok(&["mkdir", &format!("{store}:/d")]);
    ok(&["cp", &format!("{store}:/a"), &format!("{store}:/d/b")]);
    assert!(ok(&["ls", store]).contains("lost+found"));
    assert!(ok(&["tree", store]).contains("d/"));
    ok(&["get", &format!("{store}:/d"), &place.text("got")]);
    assert_eq!(fs::read_to_string(place.path("got/b")).unwrap(), "hello\n");
    ok(&["rm", "-r", &format!("{store}:/d")]);
    assert!(ok(&["inspect", store]).contains("far"));
    assert!(ok(&["adopt", "--full", store]).contains("usable"));
    let there = mounted(store, &dir, "commit=1");
    fs::write(format!("{dir}/c"), "there\n").unwrap();
    tool("sync", &[&format!("{dir}/c")]);
    let status = json(&["status", "--json", &dir]);
    let shown = &status["store"];
    assert_eq!(
        (&shown["name"], &shown["kind"]),
        (&store.into(), &kind.into())
    );
    assert_eq!(
        (&shown["connected"], &shown["one_writer"]),
        (&true.into(), &writer.into())
    );
    assert!(shown["round_trip_us"].as_f64().unwrap() > 0.0);
    assert!(ok(&["status", store]).contains("connected, 0 reconnects"));
    assert!(ok(&["list"]).contains(store));
    assert!(ok(&["metrics", &dir]).contains("ccfs_store_connected{"));
    assert_eq!(
        json(&["top", "--json", &dir])["volume"]["store"]["name"],
        store
    );
    refused(
        "mount",
        &ccfs_with(&["mount", store, &dir]),
        32,
        &["already mounted"],
    );
    refused(
        "fsck",
        &ccfs_with(&["fsck", "-p", store]),
        8,
        &["unmount it first"],
    );
    refused("ls", &ccfs_with(&["ls", store]), 1, &["is in use"]);
    ok(&["scrub", store]);
    // By its name.
    ok(&["umount", store]);
    drop(there);
    assert!(!is_mounted(&dir));
    assert_eq!(ok(&["cat", &format!("{store}:/c")]), "there\n");
    ok(&["fsck", "-n", store]);
    ok(&["fsck", "-fp", store]);
    assert!(ok(&["release", store]).contains("e2fsck found nothing"));
    let read_only = mounted(store, &dir, "ro");
    assert_eq!(fs::read_to_string(format!("{dir}/c")).unwrap(), "there\n");
    assert!(fs::write(format!("{dir}/x"), "").is_err());
    ok(&["umount", &dir]);
    drop(read_only);
}

#[test]
fn every_command_takes_an_nbd_export() {
    needs!(&["nbdkit"]);
    let place = Place::new();
    let server = Server::nbdkit(&place.path("."), &["memory", "256M"]);
    every_command(&place, &server.uri(), "nbd", "heartbeat");
}

/// As /etc/fstab names it, by mount(8) and umount(8).
#[test]
fn fstab_takes_a_store() {
    needs!(&["nbdkit"]);
    let place = Place::new();
    let server = Server::nbdkit(&place.path("."), &["memory", "64M"]);
    let (store, dir) = (server.uri(), place.subdir("mnt"));
    ok(&["mkfs", &store]);
    let table = format!("{store} {dir} ccfs _netdev,noatime,timeout=30 0 0\n");
    fs::write(place.path("fstab"), table).unwrap();
    common::in_namespace(
        &place,
        r#"
        cd "$PLACE"
        mount -T fstab -a
        mount -T fstab -a                  # a second time there is nothing to do
        test "$(grep -c " $PLACE/mnt " /proc/self/mountinfo)" = 1
        "$PROGRAM" status --json "$PLACE/mnt" | grep '"timeout": "30"'
        echo one > mnt/f
        mount -T fstab -o remount,ro "$PLACE/mnt"
        ! sh -c 'echo two > mnt/f' 2>/dev/null
        umount "$PLACE/mnt"
        mount -T fstab "$PLACE/mnt"
        test "$(cat mnt/f)" = one
        umount "$PLACE/mnt"
        "#,
    );
    ok(&["fsck", "-fn", &store]);
}

/// A server that takes whole blocks of 4096 bytes only: the owner's claim is a part of one.
#[test]
fn large_units_and_small_records() {
    needs!(&["nbdkit"]);
    let place = Place::new();
    let policy = ["--filter=blocksize-policy", "memory", "256M"];
    let sizes = [
        "blocksize-minimum=4096",
        "blocksize-preferred=4096",
        "blocksize-maximum=1M",
        "blocksize-error-policy=error",
    ];
    let args: Vec<&str> = policy.into_iter().chain(sizes).collect();
    let server = Server::nbdkit(&place.path("."), &args);
    let (store, dir) = (server.uri(), place.subdir("mnt"));
    ok(&["mkfs", &store]);
    let there = mounted(&store, &dir, "commit=1");
    for number in 0..50 {
        fs::write(format!("{dir}/{number}"), vec![number; 9000]).unwrap();
    }
    // Some beats of the owner beside checkpoints of block 0.
    std::thread::sleep(Duration::from_secs(4));
    tool("sync", &[&dir]);
    ok(&["umount", &dir]);
    drop(there);
    ok(&["fsck", "-fn", &store]);
    for number in 0..50 {
        assert_eq!(
            ok(&["ls", &format!("{store}:/{number}")]).trim(),
            format!("/{number}")
        );
    }
}

/// Host A has it. Host B is refused by A's name, takes it over by force, and A stops at its next heartbeat and says who has it.
#[test]
fn a_heartbeat_tells_two_hosts_of_each_other() {
    needs!(&["nbdkit"]);
    let place = Place::new();
    let server = Server::nbdkit(&place.path("."), &["memory", "256M"]);
    let (store, at_a, at_b) = (server.uri(), place.subdir("a"), place.subdir("b"));
    ok(&["mkfs", &store]);
    let (mut a, mut b) = (Host::new("host-a"), Host::new("host-b"));
    begins(&mut a, &store, &at_a);
    let (code, said) = b.ccfs(&format!("mount '{store}' {at_b}"));
    assert!(
        code == 32 && said.contains("host host-a (process") && said.contains("--take-over"),
        "{said}"
    );
    // Not only mounts are refused.
    let (code, said) = b.ccfs(&format!("fsck -p '{store}'"));
    assert!(code == 8 && said.contains("host-a"), "{said}");
    let (code, said) = b.ccfs(&format!("mount --take-over '{store}' {at_b}"));
    assert_eq!(code, 0, "{said}");
    assert_eq!(b.run(&format!("cat {at_b}/one")).1, "one");
    assert_eq!(
        b.run(&format!("echo two >{at_b}/two && sync {at_b}/two")).0,
        0
    );
    // A writes no more, and says why.
    let (code, _) = a.run(&format!("echo late >{at_a}/late && sync {at_a}/late"));
    assert_ne!(code, 0, "A goes on writing");
    let (_, said) = a.ccfs(&format!("status {at_a}"));
    assert!(
        said.contains("STOPPED") && said.contains("host-b"),
        "{said}"
    );
    a.unmount(&at_a, 32);
    assert_eq!(
        b.run(&format!("cat {at_b}/two; ls {at_b}/late 2>/dev/null"))
            .1,
        "two"
    );
    b.unmount(&at_b, 0);
    ok(&["fsck", "-fn", &store]);
}

/// Host A loses power. Host B waits until A's count has stood still, and goes on with what A had synced.
#[test]
fn a_dead_host_is_followed_by_the_next() {
    needs!(&["nbdkit"]);
    let place = Place::new();
    let server = Server::nbdkit(&place.path("."), &["memory", "256M"]);
    let (store, at_a, at_b) = (server.uri(), place.subdir("a"), place.subdir("b"));
    ok(&["mkfs", &store]);
    let mut a = Host::new("host-a");
    begins(&mut a, &store, &at_a);
    drop(a);
    let begun = Instant::now();
    let mut b = Host::new("host-b");
    let (code, said) = b.ccfs(&format!("mount '{store}' {at_b}"));
    assert_eq!(code, 0, "{said}");
    assert!(said.contains("taken over from host host-a"), "{said}");
    // Longer than the record's age, and not for ever.
    let took = begun.elapsed();
    assert!(took > Duration::from_secs(5), "{took:?}");
    assert_eq!(b.run(&format!("cat {at_b}/one")).1, "one");
    b.unmount(&at_b, 0);
    ok(&["fsck", "-fn", &store]);
}

/// A daemon that was stopped, as a machine that slept: it looks before it writes.
#[test]
fn a_frozen_owner_looks_before_it_writes() {
    needs!(&["nbdkit"]);
    let place = Place::new();
    let server = Server::nbdkit(&place.path("."), &["memory", "256M"]);
    let store = server.uri();
    ok(&["mkfs", &store]);
    frozen(
        &place,
        &store,
        [Host::new("host-a"), Host::new("host-b")],
        "",
    );
}

/// Host A's daemon is stopped with something accepted and not written; B takes over; A goes on, and stops.
fn frozen(place: &Place, store: &str, hosts: [Host; 2], how: &str) {
    let [mut a, mut b] = hosts;
    let (at_a, at_b) = (place.subdir("frozen-a"), place.subdir("frozen-b"));
    begins(&mut a, store, &at_a);
    let (code, said) = b.ccfs(&format!("mount '{store}' {at_b}"));
    assert!(
        code == 32 && said.contains("host host-a (process"),
        "{said}"
    );
    assert!(said.contains("--take-over"), "{said}");
    let stop = format!("head -c 300000 /dev/zero >{at_a}/late; pkill -STOP -f 'mount --daemon'");
    assert_eq!(a.run(&stop).0, 0);
    let (code, said) = b.ccfs(&format!("mount {how} '{store}' {at_b}"));
    assert_eq!(code, 0, "{said}");
    assert!(said.contains("taken over from host host-a"), "{said}");
    // It is told of a stopped daemon, and does not wait for it.
    let (_, said) = a.ccfs(&format!("status {at_a}"));
    assert!(said.contains("is stopped"), "{said}");
    let two = format!("cat {at_b}/one; echo two >{at_b}/two; sync {at_b}/two");
    assert_eq!(b.run(&two).1, "one");
    assert_eq!(a.run("pkill -CONT -f 'mount --daemon'").0, 0);
    // Its late writes are refused, and it says why.
    let end = Instant::now() + Duration::from_secs(60);
    loop {
        let (_, said) = a.ccfs(&format!("status {at_a}"));
        if said.contains("STOPPED")
            && (said.contains("host-b") || said.contains("shut this host out"))
        {
            break;
        }
        assert!(Instant::now() < end, "{said}");
        std::thread::sleep(Duration::from_millis(200));
    }
    a.unmount(&at_a, 32);
    assert_eq!(b.run(&format!("cat {at_b}/two")).1, "two");
    b.unmount(&at_b, 0);
    ok(&["fsck", "-fn", store]);
    assert_eq!(ok(&["cat", &format!("{store}:/one")]), "one\n");
}

/// Files that a program makes and syncs, one after the other; from then on it makes old ones anew. So a volume has room for any number.
const NAMES: u32 = 2000;

fn write_synced(dir: &str, number: u32) -> std::io::Result<()> {
    let file = format!("{dir}/{}", number % NAMES);
    fs::write(&file, text_of(number))?;
    fs::File::open(&file)?.sync_all()
}

/// Some files are longer than a block.
fn text_of(number: u32) -> String {
    format!("{number}\n").repeat(1 + number as usize % 800)
}

/// Every file that was synced before `next` was begun has what was synced last. That of `next` may be anything.
fn all_synced(next: u32, read: impl Fn(&str) -> String) {
    for number in next.saturating_sub(NAMES - 1)..next {
        let name = (number % NAMES).to_string();
        assert!(read(&name) == text_of(number), "{number} of {next} is lost");
    }
}

/// Files are made and synced while the server is killed and started again; nothing that was synced is lost, and nothing fails.
fn killed_again_and_again(place: &Place, mut server: Server, kills: u32) {
    let (store, dir) = (server.uri(), place.subdir("mnt"));
    ok(&["mkfs", &store]);
    let there = mounted(&store, &dir, "commit=1,timeout=30");
    let done = std::sync::atomic::AtomicBool::new(false);
    let synced = std::thread::scope(|scope| {
        let writer = scope.spawn(|| {
            let mut number = 0;
            while !done.load(std::sync::atomic::Ordering::Relaxed) {
                write_synced(&dir, number).unwrap();
                number += 1;
            }
            number
        });
        for round in 0..kills {
            std::thread::sleep(Duration::from_millis(150 + u64::from(round) * 37 % 200));
            server.kill();
            std::thread::sleep(Duration::from_millis(u64::from(round) * 53 % 400));
            server.begin();
        }
        // It is of use again.
        let status = || json(&["status", "--json", &dir]);
        wait_until("a connection", || status()["store"]["connected"] == true);
        done.store(true, std::sync::atomic::Ordering::Relaxed);
        writer.join().unwrap()
    });
    assert!(synced > 0);
    let status = json(&["status", "--json", &dir]);
    assert!(
        status["store"]["reconnects"].as_u64().unwrap() > 0,
        "{}",
        status["store"]
    );
    ok(&["umount", &dir]);
    drop(there);
    ok(&["fsck", "-fn", &store]);
    let there = mounted(&store, &dir, "");
    all_synced(synced, |name| {
        fs::read_to_string(format!("{dir}/{name}")).unwrap_or_default()
    });
    println!("{synced} files were synced");
    drop(there);
}

#[test]
fn an_nbdkit_that_is_killed_again_and_again() {
    needs!(&["nbdkit"]);
    let place = Place::new();
    let image = empty_image(&place, 128);
    let server = Server::nbdkit(&place.path("."), &["file", image.to_str().unwrap()]);
    killed_again_and_again(&place, server, rounds(8));
}

#[test]
fn a_qemu_nbd_that_is_killed_again_and_again() {
    needs!(&["qemu-nbd"]);
    let place = Place::new();
    let (_, server) = qemu_nbd(&place, 128);
    killed_again_and_again(&place, server, rounds(8));
}

/// Kills of a test, more in `make soak`.
fn rounds(usual: u32) -> u32 {
    let asked = std::env::var("CCFS_STORE_KILLS").ok();
    asked.map_or(usual, |n| n.parse().expect("a number"))
}

/// Server, daemon or both die, in turn by chance, under a program that syncs; after each the volume is mounted again, and has all that was
/// synced.
#[test]
fn servers_and_daemons_are_killed() {
    needs!(&["qemu-nbd"]);
    let place = Place::new();
    let (_, mut server) = qemu_nbd(&place, 128);
    let (store, dir) = (server.uri(), place.subdir("mnt"));
    ok(&["mkfs", &store]);
    let mut rng = Rng::new(1);
    let mut synced = 0;
    for round in 0..rounds(3) {
        let there = mounted(&store, &dir, "commit=1,timeout=30,take_over");
        all_synced(synced, |name| {
            fs::read_to_string(format!("{dir}/{name}")).unwrap_or_default()
        });
        let (pid, before) = (common::daemon(&dir), synced);
        let stop = std::sync::atomic::AtomicBool::new(false);
        let first = std::sync::atomic::AtomicBool::new(false);
        synced = std::thread::scope(|scope| {
            let writer = scope.spawn(|| {
                let mut number = synced;
                while !stop.load(std::sync::atomic::Ordering::Relaxed) {
                    if write_synced(&dir, number).is_err() {
                        break;
                    }
                    number += 1;
                    first.store(true, std::sync::atomic::Ordering::Relaxed);
                }
                number
            });
            // One is synced.
            while !first.load(std::sync::atomic::Ordering::Relaxed) && !writer.is_finished() {
                std::thread::sleep(Duration::from_millis(5));
            }
            std::thread::sleep(Duration::from_millis(200 + rng.below(1500)));
            let kinds = if round % 3 == 2 { 2 } else { rng.below(3) };
            if kinds != 0 {
                server.kill();
            }
            if kinds != 1 {
                common::signal(pid, "KILL");
            }
            std::thread::sleep(Duration::from_millis(rng.below(500)));
            if kinds != 0 {
                server.begin();
            }
            std::thread::sleep(Duration::from_millis(300));
            stop.store(true, std::sync::atomic::Ordering::Relaxed);
            writer.join().unwrap()
        });
        assert!(synced > before, "round {round}: nothing was synced");
        drop(there);
    }
    ok(&["fsck", "-p", &store]);
    ok(&["fsck", "-fn", &store]);
    println!("{synced} files were synced");
}

/// A server that does not come back: everybody is told after `timeout=`, and nothing hangs.
#[test]
fn a_server_that_stays_away_stops_the_volume() {
    needs!(&["nbdkit"]);
    let place = Place::new();
    let image = empty_image(&place, 64);
    let mut server = Server::nbdkit(&place.path("."), &["file", image.to_str().unwrap()]);
    let (store, dir) = (server.uri(), place.subdir("mnt"));
    ok(&["mkfs", &store]);
    let there = mounted(&store, &dir, "commit=1,timeout=5");
    fs::write(format!("{dir}/synced"), "synced\n").unwrap();
    tool("sync", &[&format!("{dir}/synced")]);
    server.kill();
    let begun = Instant::now();
    fs::write(format!("{dir}/late"), "late\n").unwrap();
    let synced = fs::File::open(format!("{dir}/late")).unwrap().sync_all();
    assert!(synced.is_err());
    assert!(
        begun.elapsed() < Duration::from_secs(40),
        "{:?}",
        begun.elapsed()
    );
    let said = ccfs_with(&["status", &dir]).out;
    assert!(said.contains("no connection for 5 s (timeout=)"), "{said}");
    let begun = Instant::now();
    assert_eq!(ccfs_with(&["umount", &dir]).code, 32);
    assert!(
        begun.elapsed() < Duration::from_secs(60),
        "{:?}",
        begun.elapsed()
    );
    drop(there);
    server.begin();
    assert_eq!(ok(&["cat", &format!("{store}:/synced")]), "synced\n");
    ok(&["fsck", "-fp", &store]);
}

/// What is wrong with a name, or with what it leads to, is said in a line.
#[test]
fn stores_that_cannot_be_used() {
    needs!(&["nbdkit"]);
    let place = Place::new();
    let dir = place.subdir("mnt");
    let gone = format!("nbd+unix:///?socket={}", place.text("none.sock"));
    for (store, words) in [
        (gone.as_str(), &["No such file"][..]),
        ("rbd:image", &["rbd:POOL/IMAGE"]),
        ("rbd:pool/image:key=secret", &["keyring"]),
        ("nbd://127.0.0.1:1/x", &["refused"]),
    ] {
        refused(store, &ccfs_with(&["mount", store, &dir]), 32, words);
        refused(store, &ccfs_with(&["fsck", "-n", store]), 8, words);
        refused(store, &ccfs_with(&["ls", store]), 1, words);
        refused(store, &ccfs_with(&["mkfs", store]), 1, words);
    }
    let server = Server::nbdkit(&place.path("."), &["-r", "memory", "64M"]);
    let refused_as = ccfs_with(&["mkfs", &server.uri()]);
    refused("read-only", &refused_as, 1, &["Read-only file system"]);
    let ran = ccfs_with(&["mount", "-o", "timeout=1", &gone, &dir]);
    refused("timeout", &ran, 1, &["5 to 86400"]);
}

/// All of it on Ceph: commands, the lock, a host that is frozen while another takes over, snapshots and clones.
#[test]
fn images_of_a_ceph_cluster() {
    needs!(Ceph::PROGRAMS);
    let place = Place::new();
    let ceph = Ceph::start(&place.path("."));
    ceph.tool("rbd", &["create", "--size", "256", "rbd/a"]);
    let store = ceph.name("a");
    every_command(&place, &store, "rbd", "lock");
    larger(&place, &store, || {
        ceph.tool(
            "rbd",
            &["resize", "--no-progress", "--size", "320", "rbd/a"],
        );
    });
    let hosts = ["host-a", "host-b"].map(Host::on_network);
    frozen(&place, &store, hosts, "--take-over");
    golden_image(&place, &ceph, &store);
    // Without the lock there is no second writer to keep out.
    let plain = [
        "create",
        "--size",
        "64",
        "--image-feature",
        "layering",
        "rbd/plain",
    ];
    ceph.tool("rbd", &plain);
    let ran = ccfs_with(&["mkfs", &ceph.name("plain")]);
    refused(
        "no lock",
        &ran,
        1,
        &["rbd feature enable rbd/plain exclusive-lock"],
    );
}

/// The store's image is made larger under the mounted volume, which follows when it is told.
fn larger(place: &Place, store: &str, make_larger: impl FnOnce()) {
    let dir = place.subdir("larger");
    let size = |dir: &str| {
        json(&["status", "--json", dir])["space"]["size_bytes"]
            .as_u64()
            .unwrap()
    };
    let there = mounted(store, &dir, "commit=1");
    fs::write(format!("{dir}/before"), "before\n").unwrap();
    let before = size(&dir);
    let asked = ccfs_with(&["resize", &dir, "320M"]);
    refused("too early", &asked, 1, &["has to be made larger first"]);
    make_larger();
    ok(&["resize", &dir]);
    assert!(size(&dir) > before + (32 << 20), "{before}, {}", size(&dir));
    fs::write(format!("{dir}/after"), vec![1; 1 << 20]).unwrap();
    tool("sync", &[&format!("{dir}/after")]);
    ok(&["umount", &dir]);
    drop(there);
    ok(&["fsck", "-fn", store]);
    assert_eq!(ok(&["cat", &format!("{store}:/before")]), "before\n");
}

#[test]
fn an_nbd_export_grows() {
    needs!(&["qemu-nbd"]);
    let place = Place::new();
    let (image, mut server) = qemu_nbd(&place, 256);
    let store = server.uri();
    ok(&["mkfs", &store]);
    // qemu-nbd looks at its file when it starts.
    larger(&place, &store, || {
        server.kill();
        let file = fs::File::options().write(true).open(&image).unwrap();
        file.set_len(320 << 20).unwrap();
        server.begin();
    });
}

/// Where the libraries are not installed a line says which package has them.
#[test]
fn without_the_libraries() {
    needs_mounts!();
    let place = Place::new();
    common::in_namespace(
        &place,
        r#"
        for library in $(ldconfig -p | sed -n 's/^.*lib\(nbd\|rbd\|rados\)\.so.* => //p'); do
            mount --bind /dev/null "$library"
        done
        ! "$PROGRAM" ls nbd://127.0.0.1/x 2>refused
        grep -q 'libnbd.so.0 is missing; install the package libnbd0' refused
        ! "$PROGRAM" ls rbd:rbd/x 2>refused
        grep -q 'librados.so.2 is missing; install the package librbd1' refused
        "$PROGRAM" version
        "#,
    );
}

/// One image, its snapshot and clone; the snapshot is read by several at once.
fn golden_image(place: &Place, ceph: &Ceph, store: &str) {
    ceph.tool("rbd", &["snap", "create", "rbd/a@golden"]);
    ceph.tool("rbd", &["snap", "protect", "rbd/a@golden"]);
    let golden = store.replace("rbd/a", "rbd/a@golden");
    let dirs = [place.subdir("golden-1"), place.subdir("golden-2")];
    // A host has the mounts that are there when it is made.
    let mut other = Host::on_network("other");
    let first = mounted(&golden, &dirs[0], "ro");
    let (code, said) = other.ccfs(&format!("mount -o ro '{golden}' {}", dirs[1]));
    assert_eq!(code, 0, "{said}");
    assert_eq!(other.run(&format!("cat {}/one", dirs[1])).1, "one");
    assert_eq!(
        fs::read_to_string(format!("{}/one", dirs[0])).unwrap(),
        "one\n"
    );
    other.unmount(&dirs[1], 0);
    ok(&["umount", &dirs[0]]);
    drop(first);
    ceph.tool("rbd", &["clone", "rbd/a@golden", "rbd/copy"]);
    let copy = ceph.name("copy");
    ok(&["rm", &format!("{copy}:/one")]);
    assert_eq!(ok(&["cat", &format!("{store}:/one")]), "one\n");
    assert!(Path::new(&dirs[0]).exists());
}
