"""Containers without an engine: own mounts and network, another user, a root that cannot be written to."""

from __future__ import annotations

import ctypes
import json
import os
import signal
import subprocess
import sys
import tempfile
import urllib.error
import urllib.request
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import Executor, ThreadPoolExecutor
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path

from support.commands import wait_until
from support.namespaces import in_a_namespace_of_its_own
from support.patience import WAIT_S
from support.requirements import skip_without

INIT = Path(__file__).with_name("container_init.py")
UID = 10001
PASSWD = f"root:x:0:0::/root:/bin/sh\notel-llm:x:{UID}:{UID}::/nonexistent:/usr/sbin/nologin\n"


@dataclass(frozen=True)
class Mount:
    """A file or a folder of this machine at a place in a container."""

    source: Path
    target: str
    writable: bool = False

    def words(self) -> tuple[str, str, bool]:
        return (str(self.source), self.target, self.writable)


def this_python() -> list[Mount]:
    """Return the mount of this Python, if it is not under /usr."""
    prefix = Path(sys.base_prefix)
    return [] if prefix.is_relative_to("/usr") else [Mount(prefix, str(prefix))]


def some_of_etc() -> list[Mount]:
    """Return the mounts of what programs look up in /etc beside names and users."""
    return [Mount(Path(path), path) for path in ("/etc/ld.so.cache", "/etc/ssl") if Path(path).exists()]


def container(
    folder: Path,
    command: Sequence[str],
    mounts: Sequence[Mount],
    env: Mapping[str, str],
    *,
    uid: int,
    files: Mapping[str, str] | None = None,
) -> list[str]:
    """Return the command that runs a command in a container. Skips the test if a container's user cannot be had."""
    if in_a_namespace_of_its_own() != ["unshare", "-m"]:
        skip_without("mount-namespace", "a container's user needs root")
    spec = {
        "root": tempfile.mkdtemp(dir=folder),
        "binds": [one.words() for one in (*this_python(), *mounts)],
        "files": dict(files or {}),
        "uid": uid,
        "cwd": "/",
        "command": list(command),
        "env": dict(env),
    }
    return ["unshare", "-m", sys.executable, str(INIT), json.dumps(spec)]


@dataclass
class Running:
    """A container's process; `said()` is its output so far."""

    name: str
    process: subprocess.Popen[bytes]
    log: Path

    def said(self) -> str:
        return self.log.read_text(encoding="utf-8", errors="replace")

    def stop(self) -> int:
        """Ask it to stop, as an engine does; return its status."""
        self.process.terminate()
        return self.process.wait(WAIT_S)


@dataclass
class Network:
    """A network namespace of its own, if all services of a stack listen on addresses of the loopback network."""

    folder: Path
    hosts: dict[str, str] = field(default_factory=dict)
    _stack: ExitStack = field(default_factory=ExitStack)
    _namespace: str = ""
    _client: Executor = field(init=False)

    def __post_init__(self) -> None:
        in_a_namespace_of_its_own()
        holder = subprocess.Popen(["unshare", "-n", sys.executable, "-c", LOOPBACK], stdout=subprocess.PIPE, text=True)
        self._stack.callback(end, holder)
        assert holder.stdout is not None
        assert holder.stdout.readline() == "ready\n"
        self._namespace = f"/proc/{holder.pid}/ns/net"
        self._client = self._stack.enter_context(ThreadPoolExecutor(1, initializer=enter, initargs=(self._namespace,)))

    def within(self, *command: str | Path) -> list[str]:
        """Return a command that runs in this network, as root, with this machine's files."""
        return ["nsenter", f"--net={self._namespace}", *map(str, command)]

    def run(
        self, name: str, command: Sequence[str], mounts: Sequence[Mount], env: Mapping[str, str], *, uid: int = UID
    ) -> Running:
        """Start a container. Its name resolves to its own address, those of the others to theirs."""
        hosts = "".join(f"{address} {host}\n" for host, address in self.hosts.items())
        files = {
            "/etc/hosts": f"127.0.0.1 localhost\n{hosts}",
            "/etc/nsswitch.conf": "hosts: files\n",
            "/etc/passwd": PASSWD,
        }
        started = container(self.folder, command, [*some_of_etc(), *mounts], env, uid=uid, files=files)
        log = self.folder / f"{name}.log"
        with log.open("wb") as out:
            process = subprocess.Popen(
                self.within(*started), stdout=out, stderr=subprocess.STDOUT, start_new_session=True
            )
        self._stack.callback(end, process, whole_group=True)
        return Running(name, process, log)

    def fetch(self, url: str, *, token: str | None = None, body: bytes | None = None) -> tuple[int, str]:
        """Send a request from within this network; return the status (0: nothing there) and the text."""
        return self._client.submit(fetch, url, token, body).result()

    def wait_for(self, url: str, container: Running) -> None:
        """Wait until an address answers 200."""

        def answers() -> bool:
            assert container.process.poll() is None, container.said()
            return self.fetch(url)[0] == 200

        wait_until(f"{url}: {container.name}", answers)

    def close(self) -> None:
        self._stack.close()


LOOPBACK = """
import fcntl, signal, socket, struct
with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as any_socket:
    fcntl.ioctl(any_socket, 0x8914, struct.pack("16sh22x", b"lo", 1))
print("ready", flush=True)
signal.pause()
"""
"""It sets the flag `IFF_UP` (SIOCSIFFLAGS) as `ip link set lo up` does, and holds the namespace open."""

CLONE_NEWNET = 0x40000000


def enter(namespace: str) -> None:
    """Move this thread, and no other, into a network namespace: what it connects to is in there."""
    with Path(namespace).open("rb") as file:
        if ctypes.CDLL(None, use_errno=True).setns(file.fileno(), CLONE_NEWNET):
            raise OSError(ctypes.get_errno(), "setns")


def fetch(url: str, token: str | None, body: bytes | None) -> tuple[int, str]:
    """Send a request; return the status (0: nothing there) and the text."""
    headers = {"Content-Type": "application/x-protobuf"} | ({"Authorization": f"Bearer {token}"} if token else {})
    try:
        with urllib.request.urlopen(urllib.request.Request(url, body, headers), timeout=WAIT_S) as answer:
            return answer.status, answer.read().decode()
    except urllib.error.HTTPError as error:
        return error.code, error.read().decode()
    except OSError as error:
        return 0, str(error)


def end(process: subprocess.Popen[str] | subprocess.Popen[bytes], *, whole_group: bool = False) -> None:
    """End a process that may have ended, or all of its session, and wait for it."""
    if whole_group:
        with suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
    else:
        process.kill()
    process.wait()
    if process.stdout is not None:
        process.stdout.close()


@contextmanager
def network(folder: Path, names: Sequence[str] = ()) -> Iterator[Network]:
    """Yield a network in which each of the names has an address of its own."""
    made = Network(folder, {name: f"127.0.1.{number}" for number, name in enumerate(names, 1)})
    try:
        yield made
    finally:
        made.close()
