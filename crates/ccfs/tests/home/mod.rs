//! An ordinary user's home, where he may mount by way of fusermount3.
#![allow(dead_code)]
use crate::common::{self, Place, Ran, run, tool};
use ccfs_testkit::mounts::apart;
use std::fs;
use std::io::{BufRead, BufReader};
use std::os::unix::fs::{MetadataExt, PermissionsExt, chown};
use std::process::{Child, Command, Stdio};

pub const USER: u32 = 65534;
/// Characters that mean something in options of a mount.
pub const IMAGE: &str = "a, b\\c.img";

/// Why these tests cannot run here.
fn impossible() -> Option<&'static str> {
    common::no_mounts().or_else(|| {
        let found = ["/usr/bin/fusermount3", "/bin/fusermount3"]
            .iter()
            .any(|p| fs::metadata(p).is_ok_and(|m| m.mode() & 0o4000 != 0 && m.uid() == 0));
        (!found).then_some("there is no setuid fusermount3")
    })
}

/// A user's home with an image, a mount point and the program, seen from a mount namespace in which users may open /dev/fuse (not every machine
/// lets them).
pub struct Home {
    pub place: Place,
    /// Keeps the namespace until it is dropped.
    keeper: Child,
}

impl Home {
    /// `None`, and a line `skipped: why`: these tests cannot run here.
    pub fn new() -> Option<Home> {
        if let Some(why) = impossible() {
            println!("skipped: {why}");
            return None;
        }
        let place = Place::new();
        fs::set_permissions(place.path(""), fs::Permissions::from_mode(0o755)).unwrap();
        tool(
            "install",
            &["-m", "755", env!("CARGO_BIN_EXE_ccfs"), &place.text("ccfs")],
        );
        for dir in ["home", "home/mnt"] {
            chown(place.subdir(dir), Some(USER), Some(USER)).unwrap();
        }
        let node = place.text("fuse");
        let script = format!(
            "mknod -m 666 {node} c 10 229 && mount --bind {node} /dev/fuse && : </dev/fuse && echo ready && exec cat >/dev/null"
        );
        let mut keeper = apart(&[], &["sh", "-c", &script])
            // Ends with this process, however that ends.
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let mut line = String::new();
        BufReader::new(keeper.stdout.as_mut().unwrap())
            .read_line(&mut line)
            .unwrap();
        let home = Home { place, keeper };
        if line != "ready\n" {
            println!("skipped: a device file or a mount namespace cannot be made here");
            return None;
        }
        home.good(&["mkfs", "-s", "32M", IMAGE]);
        Some(home)
    }

    pub fn path(&self, name: &str) -> String {
        self.place.text(&format!("home/{name}"))
    }

    /// Runs a program as root in the namespace.
    pub fn root(&self, args: &[&str]) -> Ran {
        let pid = self.keeper.id().to_string();
        let mut command = Command::new("nsenter");
        command
            .args(["-t", &pid, "-m", "--"])
            .args(args)
            .stdin(Stdio::null());
        run(&mut command)
    }

    /// Runs a program as the user, with a real change of user and no groups.
    pub fn user(&self, program: &str, args: &[&str]) -> Ran {
        let user = USER.to_string();
        let there = ["sh", "-c", "cd \"$0\" && exec \"$@\"", &self.path("")];
        let become_user = [
            "setpriv",
            "--reuid",
            &user,
            "--regid",
            &user,
            "--clear-groups",
            "--inh-caps=-all",
            "--",
            program,
        ];
        self.root(&[&there[..], &become_user, args].concat())
    }

    /// The type of what is mounted on a directory, as the namespace has it.
    pub fn fstype(&self, dir: &str) -> Option<String> {
        let table = fs::read_to_string(format!("/proc/{}/mountinfo", self.keeper.id())).unwrap();
        let line = table.lines().rfind(|l| l.split(' ').nth(4) == Some(dir))?;
        line.split(" - ")
            .nth(1)?
            .split(' ')
            .next()
            .map(str::to_string)
    }

    pub fn ccfs(&self, args: &[&str]) -> Ran {
        self.user(&self.place.text("ccfs"), args)
    }

    pub fn good(&self, args: &[&str]) -> String {
        let ran = self.ccfs(args);
        assert_eq!(ran.code, 0, "{args:?}: {}{}", ran.out, ran.err);
        ran.out + &ran.err
    }

    pub fn shell(&self, script: &str) -> Ran {
        self.user("sh", &["-ec", script])
    }
}

impl Drop for Home {
    fn drop(&mut self) {
        // Nothing is mounted any more, unless the test failed.
        if self.fstype(&self.path("mnt")).is_some() {
            self.root(&["umount", "-l", &self.path("mnt")]);
        }
        let _ = self.keeper.kill();
        let _ = self.keeper.wait();
    }
}
