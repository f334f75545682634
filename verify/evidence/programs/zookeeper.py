"""ZooKeeper: a server of one, with a short log and frequent snapshots; nodes that are made one after the other, each marked when the server has answered.
usage: zookeeper.py setup|work|check|damage, in the directory to work in.
Consistent: the server starts, the nodes are whole and a prefix, the server takes another one, and none is lost that was answered for (exit code 3)."""
import glob
import os
import signal
import socket
import struct
import subprocess
import sys
import tempfile
import time

SETUP, ALL = 10, 60
PATIENCE = 600  # seconds for the start of the server and for an answer, on the slowest of machines
CREATE, GET_DATA, GET_CHILDREN = 1, 4, 8
JAVA = ["java", "-Xmx96m", "-Xshare:auto", "-XX:TieredStopAtLevel=1", "-XX:+UseSerialGC", "-XX:-UsePerfData",
        "-Dzookeeper.snapCount=20", "-Dzookeeper.preAllocSize=64", "-Dzookeeper.admin.enableServer=false",
        "-cp", "/usr/share/java/zookeeper.jar", "org.apache.zookeeper.server.ZooKeeperServerMain"]


def fail(text, code=1):
    print("error: " + text)
    sys.exit(code)


def text(s):
    return struct.pack(">i", len(s)) + s


class Server:
    """A server over the directory `data`, and a session with it."""

    def __init__(self):
        self.said = tempfile.TemporaryFile()
        # Another program may take the port in the meantime: try again with another one.
        for _ in range(5):
            with socket.socket() as s:
                s.bind(("127.0.0.1", 0))
                port = s.getsockname()[1]
            self.process = subprocess.Popen(JAVA + [str(port), "data"], stdin=subprocess.DEVNULL,
                                            stdout=self.said, stderr=subprocess.STDOUT)
            if self.connect(port):
                return
            if b"BindException" not in self.words():
                break
        lines = [l for l in self.words().decode(errors="replace").splitlines() if "xception" in l or "rror" in l]
        fail("the server does not start: " + (lines[0] if lines else "no answer"))

    def words(self):
        self.said.seek(0)
        return self.said.read()

    def connect(self, port):
        end, wait = time.monotonic() + PATIENCE, 1
        while self.process.poll() is None and time.monotonic() < end:
            try:
                self.socket = socket.create_connection(("127.0.0.1", port), wait)
                self.send(struct.pack(">iqiq", 0, 0, 40000, 0) + text(bytes(16)))
                self.receive()
                self.socket.settimeout(PATIENCE)
                self.xid = 0
                return True
            except socket.timeout:
                # A server that is about to start accepts a connection and never reads it.
                wait = min(2 * wait, 60)
            except OSError:
                time.sleep(0.05)
        self.process.kill()
        self.process.wait()
        return False

    def send(self, body):
        self.socket.sendall(text(body))

    def exactly(self, n):
        out = b""
        while len(out) < n:
            part = self.socket.recv(n - len(out))
            if not part:
                raise ConnectionError("the server hung up")
            out += part
        return out

    def receive(self):
        return self.exactly(struct.unpack(">i", self.exactly(4))[0])

    def call(self, kind, body):
        """The answer's bytes. None: the server says no."""
        self.xid += 1
        try:
            self.send(struct.pack(">ii", self.xid, kind) + body)
            answer = self.receive()
        except OSError as e:
            fail(f"the server does not answer: {e}")
        code = struct.unpack(">i", answer[12:16])[0]
        return answer[16:] if code == 0 else None

    def create(self, path, data):
        acl = struct.pack(">ii", 1, 31) + text(b"world") + text(b"anyone")
        if self.call(CREATE, text(path) + text(data) + acl + struct.pack(">i", 0)) is None:
            fail("the server refuses a new node")

    def data(self, path):
        answer = self.call(GET_DATA, text(path) + b"\0")
        return None if answer is None else answer[4:4 + struct.unpack(">i", answer[:4])[0]]

    def children(self, path):
        answer = self.call(GET_CHILDREN, text(path) + b"\0")
        if answer is None:
            fail("the nodes' parent is lost")
        names, at = [], 4
        for _ in range(struct.unpack(">i", answer[:4])[0]):
            n = struct.unpack(">i", answer[at:at + 4])[0]
            names.append(answer[at + 4:at + 4 + n])
            at += 4 + n
        return names

    def stop(self):
        self.process.send_signal(signal.SIGTERM)
        self.process.wait()


def name(i):
    return b"/t/%05d" % i


def value(i):
    return b"%d " % i + bytes([97 + i % 26]) * (200 + i * 131 % 3000)


def mark(i):
    if os.environ.get("CCFS_CRASH_MARK"):
        subprocess.run([os.environ["CCFS"], "crash", "mark", f"node {i}"], check=True)


def check():
    answered = SETUP - 1
    marks = os.environ.get("CCFS_MARKS")
    for line in open(marks) if marks else []:
        if line.startswith("node "):
            answered = int(line.split()[1])
    server = Server()
    names = sorted(server.children(b"/t"))
    if names != [name(i)[3:] for i in range(len(names))]:
        fail("a node is lost and a later one is there")
    for i in range(len(names)):
        if server.data(name(i)) != value(i):
            fail("a node has a wrong value")
    server.create(name(ALL), b"after")
    server.stop()
    if len(names) <= answered:
        fail("a node that was answered for is lost", 3)


def main():
    verb = sys.argv[1]
    if verb == "check":
        return check()
    if verb == "damage":
        for file in glob.glob("data/version-2/*"):
            os.truncate(file, 0)
        return None
    server = Server()
    if verb == "setup":
        server.create(b"/t", b"")
    for i in range(SETUP) if verb == "setup" else range(SETUP, ALL):
        server.create(name(i), value(i))
        if verb == "work":
            mark(i)
    server.stop()
    return None


main()
