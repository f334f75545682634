//! Stores on other machines, run here: NBD servers, a Ceph of one node; and hosts that are namespaces.
use crate::mounts::apart;
use crate::program::ccfs;
use crate::run::{is_running, signal, tool, wait_until};
use std::io::{BufRead, BufReader, Write};
use std::net::TcpListener;
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};
use std::time::{Duration, Instant};

/// For a host's processes to be gone.
const LEAVING: Duration = Duration::from_secs(20);

/// Why there can be no such server here; `None`: there can.
fn missing(programs: &[&str]) -> Option<String> {
    let is_there = |name: &&&str| {
        let places = ["/usr/bin", "/usr/sbin", "/bin", "/sbin", "/usr/local/bin"];
        places.iter().any(|dir| Path::new(dir).join(name).exists())
    };
    let not: Vec<&str> = programs
        .iter()
        .filter(|name| !is_there(name))
        .copied()
        .collect();
    match not.is_empty() {
        true => None,
        false => Some(format!(
            "{} is missing: scripts/deps.sh test",
            not.join(", ")
        )),
    }
}

/// True, and told, where a test has to be skipped for that; never in CI, which installs all of them.
pub fn skips(programs: &[&str]) -> bool {
    let why = missing(programs);
    if let Some(why) = &why {
        assert!(std::env::var_os("CI").is_none(), "{why}");
        eprintln!("skipped: {why}");
    }
    why.is_some()
}

/// A server on a socket of its own; it ends with this.
pub struct Server {
    program: String,
    args: Vec<String>,
    socket: PathBuf,
    child: Option<Child>,
}

impl Server {
    fn start(program: &str, args: Vec<String>, socket: PathBuf) -> Server {
        let mut server = Server {
            program: program.into(),
            args,
            socket,
            child: None,
        };
        server.begin();
        server
    }

    /// nbdkit, with a plugin and what belongs to it.
    pub fn nbdkit(dir: &Path, args: &[&str]) -> Server {
        let socket = dir.join("nbd.sock");
        let mut all = vec!["-f".to_string(), "-U".into(), socket.display().to_string()];
        all.extend(args.iter().map(|arg| arg.to_string()));
        Server::start("nbdkit", all, socket)
    }

    /// qemu-nbd over a raw file.
    pub fn qemu_nbd(dir: &Path, image: &Path) -> Server {
        let socket = dir.join("nbd.sock");
        let args = [
            "--persistent",
            "--shared=8",
            "-f",
            "raw",
            "--cache=writeback",
            "-k",
        ];
        let mut all: Vec<String> = args.iter().map(|arg| arg.to_string()).collect();
        all.extend([socket.display().to_string(), image.display().to_string()]);
        Server::start("qemu-nbd", all, socket)
    }

    /// As ccfs names it.
    pub fn uri(&self) -> String {
        format!("nbd+unix:///?socket={}", self.socket.display())
    }

    /// Starts it where it does not run.
    pub fn begin(&mut self) {
        let _ = std::fs::remove_file(&self.socket);
        let child = Command::new(&self.program)
            .args(&self.args)
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .spawn();
        self.child = Some(child.expect("the server starts"));
        // The socket is there before anybody listens.
        wait_until("the server", || is_listening(&self.socket));
    }

    /// As when its machine fails: what the server itself had not passed on is lost.
    pub fn kill(&mut self) {
        if let Some(mut child) = self.child.take() {
            let _ = child.kill();
            let _ = child.wait();
        }
    }

    /// SIGSTOP or SIGCONT.
    pub fn signal(&self, name: &str) {
        if let Some(child) = &self.child {
            signal(child.id(), name);
        }
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        self.kill();
    }
}

/// Somebody takes connections at a socket, which is not tried: that would be one.
fn is_listening(socket: &Path) -> bool {
    const ACCEPTS: &str = "00010000";
    let all = std::fs::read_to_string("/proc/net/unix").unwrap_or_default();
    all.lines().any(|line| {
        let mut words = line.split_whitespace();
        words.nth(3) == Some(ACCEPTS) && words.last().is_some_and(|p| Path::new(p) == socket)
    })
}

/// One monitor and one OSD in memory, on loopback, without authentication.
pub struct Ceph {
    dir: PathBuf,
    daemons: Vec<Child>,
}

impl Ceph {
    /// The programs that it needs.
    pub const PROGRAMS: &[&str] = &["ceph", "ceph-mon", "ceph-osd", "monmaptool", "rbd"];

    /// In a directory of its own below `dir`.
    pub fn start(dir: &Path) -> Ceph {
        let dir = dir.join("ceph");
        for part in ["mon", "osd", "run"] {
            std::fs::create_dir_all(dir.join(part)).expect("a directory");
        }
        let free = TcpListener::bind("127.0.0.1:0").and_then(|socket| socket.local_addr());
        let address = format!("v2:127.0.0.1:{}", free.expect("a port").port());
        let fsid = "6ba7b810-9dad-11d1-80b4-00c04fd430c8";
        let at = dir.display();
        let text = format!(
            "[global]\nfsid = {fsid}\nmon host = {address}\nmon initial members = a\n\
             auth cluster required = none\nauth service required = none\nauth client required = none\n\
             osd pool default size = 1\nosd pool default min size = 1\nmon allow pool size one = true\n\
             osd crush chooseleaf type = 0\nosd objectstore = memstore\nmemstore device bytes = 4294967296\n\
             run dir = {at}/run\npid file = {at}/run/$name.pid\nadmin socket = {at}/run/$name.$pid.asok\n\
             log file = {at}/run/$name.log\nmon data = {at}/mon\nosd data = {at}/osd\n\
             public network = 127.0.0.0/8\nms bind ipv6 = false\n\
             mon data avail crit = 1\nmon data avail warn = 1\n"
        );
        std::fs::write(dir.join("ceph.conf"), text).expect("ceph.conf");
        let mut ceph = Ceph {
            dir,
            daemons: Vec::new(),
        };
        let path = |name: &str| ceph.dir.join(name).display().to_string();
        let map = path("monmap");
        tool(
            "monmaptool",
            &[
                "--create",
                "--addv",
                "a",
                &format!("[{address}]"),
                "--fsid",
                fsid,
                &map,
            ],
        );
        ceph.tool("ceph-mon", &["--mkfs", "-i", "a", "--monmap", &map]);
        ceph.daemon("ceph-mon", &["-f", "-i", "a"]);
        let uuid = "1b4e28ba-2fa1-11d2-883f-0016d3cca427";
        ceph.tool("ceph", &["osd", "new", uuid]);
        ceph.tool("ceph-osd", &["-i", "0", "--mkfs", "--osd-uuid", uuid]);
        ceph.daemon("ceph-osd", &["-f", "-i", "0"]);
        ceph.tool("ceph", &["osd", "pool", "create", "rbd", "8", "8"]);
        ceph
    }

    /// Its configuration.
    pub fn conf(&self) -> PathBuf {
        self.dir.join("ceph.conf")
    }

    /// An image's name for ccfs.
    pub fn name(&self, image: &str) -> String {
        format!("rbd:rbd/{image}:conf={}", self.conf().display())
    }

    /// One of its tools, which must succeed.
    pub fn tool(&self, name: &str, args: &[&str]) -> String {
        let ran = crate::run::run(
            Command::new(name)
                .args(args)
                .env("CEPH_CONF", self.conf())
                .stdin(Stdio::null()),
        );
        assert_eq!(ran.code, 0, "{name} {args:?}: {}{}", ran.out, ran.err);
        ran.out
    }

    fn daemon(&mut self, name: &str, args: &[&str]) {
        let child = Command::new(name)
            .args(args)
            .env("CEPH_CONF", self.conf())
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .spawn();
        self.daemons.push(child.expect("a daemon of Ceph"));
    }
}

impl Drop for Ceph {
    fn drop(&mut self) {
        for daemon in self.daemons.iter_mut().rev() {
            let _ = daemon.kill();
            let _ = daemon.wait();
        }
    }
}

/// A machine: its own name, mounts, network and processes. All of it ends with this.
pub struct Host {
    child: Child,
    to: ChildStdin,
    from: BufReader<ChildStdout>,
}

impl Host {
    /// Called `name`, without a network.
    pub fn new(name: &str) -> Host {
        Host::with(name, &["-n"])
    }

    /// Called `name`, on this machine's network.
    pub fn on_network(name: &str) -> Host {
        Host::with(name, &[])
    }

    fn with(name: &str, own: &[&str]) -> Host {
        let alone = ["-u", "-p", "-f", "--mount-proc", "--kill-child"];
        let mut child = apart(&[&alone, own].concat(), &["sh"])
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::inherit())
            .spawn()
            .expect("unshare starts");
        let (to, from) = (child.stdin.take(), child.stdout.take());
        let mut host = Host {
            child,
            to: to.expect("a pipe"),
            from: BufReader::new(from.expect("a pipe")),
        };
        let (code, said) = host.run(&format!(
            "hostname {name}; ip link set lo up 2>/dev/null; true"
        ));
        assert_eq!(code, 0, "{said}");
        host
    }

    /// Runs a line of a shell there: its exit code, and all that it said.
    pub fn run(&mut self, line: &str) -> (i32, String) {
        const END: &str = "--end-of-the-line--";
        writeln!(
            self.to,
            "{{ {line}\n}} 2>&1; code=$?; echo; echo {END} $code"
        )
        .expect("the shell is there");
        self.to.flush().expect("the shell is there");
        let mut said = String::new();
        loop {
            let mut one = String::new();
            let got = self.from.read_line(&mut one).expect("the shell is there");
            assert!(got > 0, "the shell ended: {said}");
            if let Some(code) = one.strip_prefix(END) {
                return (
                    code.trim().parse().expect("a number"),
                    said.trim_end().into(),
                );
            }
            said += &one;
        }
    }

    /// As `run`, with the ccfs of this build.
    pub fn ccfs(&mut self, args: &str) -> (i32, String) {
        let program = ccfs().get_program().to_string_lossy().into_owned();
        self.run(&format!("'{program}' {args}"))
    }

    /// Unmounts there, and takes that exit code.
    pub fn unmount(&mut self, dir: &str, wanted: i32) {
        let (code, said) = self.ccfs(&format!("umount {dir}"));
        assert_eq!(code, wanted, "ccfs umount {dir}: {said}");
    }
}

impl Drop for Host {
    /// As when a machine loses power.
    fn drop(&mut self) {
        let id = self.child.id();
        let first = std::fs::read_to_string(format!("/proc/{id}/task/{id}/children"));
        // Also those that are stopped, for which others may wait.
        let space = |pid: &str| std::fs::read_link(format!("/proc/{pid}/ns/pid")).ok();
        let own = first.as_deref().ok().and_then(|pid| space(pid.trim()));
        let all = std::fs::read_dir("/proc").into_iter().flatten().flatten();
        let pids = all.filter_map(|one| one.file_name().into_string().ok());
        for pid in pids.filter(|pid| own.is_some() && space(pid) == own) {
            let _ = Command::new("kill").args(["-KILL", &pid]).output();
        }
        let _ = self.child.kill();
        let _ = self.child.wait();
        // It ends when all of its processes have.
        if let Some(first) = first.ok().and_then(|pid| pid.trim().parse().ok()) {
            let end = Instant::now() + LEAVING;
            while is_running(first) && Instant::now() < end {
                std::thread::sleep(Duration::from_millis(5));
            }
        }
    }
}
