//! Ways to make the same calls in a directory of their own.
use super::super::actors::{Call, Direct, Plain, Seen, answer, shown};
use super::Place;
use ccfs_client::direct::{Dir, Session};
use ccfs_tests::sys;
use std::collections::BTreeMap;
use std::ffi::OsStr;
use std::path::PathBuf;

/// Whose calls, and where.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Kind {
    /// System calls on the kernel's ext4.
    Ext4,
    /// System calls through the mount.
    Mount,
    /// A session's, in a directory that the mount made.
    Known,
    /// A session's, in a directory that it made: nobody else looks.
    Held,
    /// The same, but somebody has looked it up before the first call.
    Broken,
    /// The same, and somebody looks everything up after each call.
    Watched,
}

pub const ALL: [Kind; 6] = [
    Kind::Ext4,
    Kind::Mount,
    Kind::Known,
    Kind::Held,
    Kind::Broken,
    Kind::Watched,
];

/// The name of each way's directory, in one of its own: one whose entry the kernel knows is known itself.
pub const BASE: &str = "b";

/// What a call answered, and what is there after it: of each path what all file systems agree in, and which times the call has changed.
#[derive(PartialEq, Eq)]
pub struct Step {
    pub answer: String,
    pub seen: Compared,
}

/// Of each path what stat(2) says of it, and which times have changed. (Times of access are approximate in any FUSE.)
pub type Compared = BTreeMap<String, (String, &'static str)>;

pub struct Way {
    pub kind: Kind,
    base: PathBuf,
    own: Own,
    /// Who makes the calls with `~`, once there are any: he looks the base up.
    others: Option<Plain>,
    before: Seen,
}

enum Own {
    Plain(Plain),
    /// With the directory that the base is in.
    Direct(Direct, Dir),
}

impl Way {
    /// In a new directory, below the directory `home`, or in the one that is there.
    pub fn new(kind: Kind, place: &Place, session: &Session, home: &str) -> Way {
        let path = match kind {
            Kind::Ext4 => place.plain().join(home),
            _ => place.mnt().join(home),
        };
        let base = path.join(BASE);
        if matches!(kind, Kind::Ext4 | Kind::Mount | Kind::Known) && sys::lstat(&base).is_err() {
            sys::mkdir(&path, 0o777).expect("make a home");
            sys::mkdir(&base, 0o777).expect("make a base");
        }
        let root = || session.root().expect("root");
        let own = match kind {
            Kind::Ext4 | Kind::Mount => Own::Plain(Plain::new(&base)),
            Kind::Known => {
                let home = root().open_dir(home).expect("open a home");
                let known = home.open_dir(BASE).expect("open a base");
                Own::Direct(Direct::on(known), home)
            }
            Kind::Held | Kind::Broken | Kind::Watched => {
                let home = root().make_dir(home, 0o777).expect("make a home");
                let held = home.make_dir(BASE, 0o777).expect("make a base");
                Own::Direct(Direct::on(held), home)
            }
        };
        let mut way = Way {
            kind,
            base,
            own,
            others: None,
            before: Seen::new(),
        };
        if kind == Kind::Broken {
            way.look_at_base();
        }
        way.before = way.look();
        way
    }

    /// Makes the call of a line.
    pub fn call(&mut self, line: &str) -> String {
        let result = match (line.strip_prefix('~'), &mut self.own) {
            (Some(others), _) => {
                let base = &self.base;
                let plain = self.others.get_or_insert_with(|| Plain::new(base));
                plain.call(&Call::parse(others))
            }
            (None, Own::Plain(plain)) => plain.call(&Call::parse(line)),
            (None, Own::Direct(direct, _)) => direct.call(&Call::parse(line)),
        };
        let text = answer(result);
        text.split(" |").next().unwrap_or("").to_string()
    }

    /// The same, and what it did.
    pub fn step(&mut self, line: &str) -> Step {
        let answer = self.call(line);
        let now = self.look();
        let seen = compared(&now, &self.before);
        self.before = now;
        Step { answer, seen }
    }

    /// What is there, as this way shows it.
    fn look(&self) -> Seen {
        let mut seen = Seen::new();
        match &self.own {
            Own::Direct(_, home) if self.kind != Kind::Watched => {
                Direct::look(home, OsStr::new(BASE), BASE, &mut seen);
            }
            _ => Plain::look(&self.base, BASE, &mut seen),
        }
        seen
    }

    /// Somebody looks the directory up, by the mount.
    pub fn look_at_base(&self) {
        sys::lstat(&self.base).expect("stat");
    }

    /// Somebody looks up all that is there.
    pub fn look_at_all(&self) -> Compared {
        let mut seen = Seen::new();
        Plain::look(&self.base, BASE, &mut seen);
        compared(&seen, &seen)
    }
}

fn compared(now: &Seen, before: &Seen) -> Compared {
    let of = |path: &String| {
        let stat = match &now[path] {
            Ok(stat) => stat,
            Err(e) => return (format!("E{e}"), ""),
        };
        let changed = match before.get(path) {
            Some(Ok(old)) => (old.mtime != stat.mtime, old.ctime != stat.ctime),
            _ => (false, false),
        };
        let changed = match changed {
            (false, false) => "",
            (true, false) => "mtime",
            (false, true) => "ctime",
            (true, true) => "mtime, ctime",
        };
        (shown(stat), changed)
    };
    now.keys().map(|path| (path.clone(), of(path))).collect()
}
