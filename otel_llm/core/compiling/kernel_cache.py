"""The cache of compiled kernels: a folder, named by a hash of everything that the machine code depends on.

It is in `OTEL_LLM_CACHE_DIR`, else in the installation (`lib/otel-llm` of its environment), or, if that is not writable
and has no such folder, in the user's cache. Kernels are machine code that this process runs: a folder is refused if its
owner is neither this user nor root, or if others may write to it.
"""

from __future__ import annotations

import fcntl
import hashlib
import os
import shutil
import stat
import sysconfig
from contextlib import contextmanager, suppress
from importlib import resources
from pathlib import Path
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator
    from importlib.resources.abc import Traversable

VARIABLE: Final = "OTEL_LLM_CACHE_DIR"
PREFIX: Final = "kernels-"
KEPT_FOLDERS: Final = 8
"""The number of last used folders that stay when a new one is created."""
_COMPLETE: Final = "complete"
"""The file that marks a folder with all kernels."""
_LOCK: Final = "lock"


class KernelCache:
    """The folder of this process's kernels, selected and created.

    Args:
        facts: what the machine code depends on, besides the sources: versions and the processor.

    `path`: None where there is no usable folder. `refused`: the reasons, one for each folder that was tried.
    `complete`: whether the folder had all kernels when it was selected. `broken`: why it was given up since.
    """

    def __init__(self, facts: Iterable[str]) -> None:
        self.name = PREFIX + fingerprint(facts)
        self.refused: list[str] = []
        self.broken: str | None = None
        self.complete = False
        self.path: Path | None = None
        for place in _candidate_folders():
            problem = self._use(place)
            if problem is None:
                return
            self.refused.append(f"{place}: {problem}")

    def _use(self, place: Path) -> str | None:
        """Use the folder in a place if that is safe and possible; else return the reason."""
        path = place / self.name
        try:
            if not path.is_dir():
                place.mkdir(parents=True, exist_ok=True)
                _remove_old(place)
                with suppress(FileExistsError):  # another process has just created it
                    path.mkdir(mode=0o700)  # others cannot reach its files, whatever their modes
            problem = why_unsafe(path)
            complete = (path / _COMPLETE).exists()
        except OSError as error:
            return error.strerror or str(error)
        if problem is not None:
            return problem
        if os.access(path, os.W_OK):
            with suppress(OSError):
                os.utime(path)  # now it is the last used one
        elif not complete:
            return "its kernels are not complete, and it cannot be written to"
        self.path, self.complete = path, complete
        return None

    @contextmanager
    def compiling(self) -> Iterator[None]:
        """Let one process of a machine compile at a time: those that wait find what it has kept.

        A process that dies releases the lock. Where the file system has none, processes compile beside each other.
        """
        if self.path is None or self.complete:
            yield
            return
        with (self.path / _LOCK).open("ab") as file:
            with suppress(OSError):
                fcntl.flock(file, fcntl.LOCK_EX)
            yield

    def give_up(self, reason: str) -> None:
        """Stop using the folder, and remove it if possible: the next process creates it again."""
        if self.path is not None:
            shutil.rmtree(self.path, ignore_errors=True)
        self.path, self.broken = None, reason

    def seal(self) -> None:
        """Mark the folder as complete; make a folder of root readable for all, for other users of an image."""
        if self.path is None or self.complete:
            return
        try:
            (self.path / _COMPLETE).touch()
            if os.geteuid() == 0:
                for file in self.path.iterdir():
                    file.chmod(0o644)
                self.path.chmod(0o755)
        except OSError as error:
            self.give_up(str(error))


def why_unsafe(folder: Path) -> str | None:
    """Return why a folder is unsafe for machine code; None where only this user or root can have written to it."""
    found = folder.lstat()
    if not stat.S_ISDIR(found.st_mode):
        return "it is not a folder"
    if found.st_uid not in (os.geteuid(), 0):
        return f"it belongs to another user ({found.st_uid})"
    if found.st_mode & (stat.S_IWGRP | stat.S_IWOTH):
        return f"others may write to it ({stat.filemode(found.st_mode)})"
    return None


def fingerprint(facts: Iterable[str]) -> str:
    """Return a hash of facts and of all sources that kernels depend on: `otel_llm.core` and `otel_llm.semconv`."""
    digest = hashlib.sha256()
    for fact in facts:
        digest.update(f"{fact}\0".encode())
    for name, source in _sources():
        digest.update(f"{name}\0".encode() + hashlib.sha256(source.read_bytes()).digest())
    return digest.hexdigest()[:16]


def _sources() -> list[tuple[str, Traversable]]:
    """Return each source with its path in the package, sorted by path."""
    ours = resources.files("otel_llm")
    core = ours / "core"
    inner = [one for one in core.iterdir() if one.is_dir() and not one.name.startswith("_")]
    folders = {"core": core} | {f"core/{one.name}": one for one in inner}
    kernels = [
        (f"{path}/{file.name}", file)
        for path, folder in folders.items()
        for file in folder.iterdir()
        if file.name.endswith(".py")
    ]
    return [*sorted(kernels, key=lambda source: source[0]), ("semconv.py", ours / "semconv.py")]


def _candidate_folders() -> Iterator[Path]:
    if stated := os.environ.get(VARIABLE):
        yield Path(stated).absolute()
        return
    yield Path(sysconfig.get_path("data")) / "lib" / "otel-llm"
    stated = os.environ.get("XDG_CACHE_HOME", "")
    with suppress(RuntimeError):  # a user without a home
        yield (Path(stated) if os.path.isabs(stated) else Path.home() / ".cache") / "otel-llm"  # noqa: PTH117


def _remove_old(place: Path) -> None:
    """Remove folders of other versions, except the last used ones."""
    with suppress(OSError):
        found = sorted(place.glob(f"{PREFIX}*"), key=lambda path: path.lstat().st_mtime, reverse=True)
        for old in found[KEPT_FOLDERS:]:
            shutil.rmtree(old, ignore_errors=True)
