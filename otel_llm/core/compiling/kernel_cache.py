"""The cache of compiled kernels: a folder, named by a hash of everything that the machine code depends on.

It is in `OTEL_LLM_CACHE_DIR`, else in the installation (`lib/otel-llm` of its environment), or, if neither can be used,
in the user's cache. Kernels are machine code that this process runs: a folder is used only if no other user than this
one and root can replace it or what is in it (`trusted_folder`). Then it stays so: what others cannot rename now they
cannot rename between the check and a read.
"""

from __future__ import annotations

import errno
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
_OTHERS_WRITE: Final = stat.S_IWGRP | stat.S_IWOTH
_MOST_LINKS: Final = 40
"""As many as Linux follows in one path."""


class KernelCache:
    """The folder of this process's kernels, selected and created.

    Args:
        facts: what the machine code depends on, besides the sources: versions and the processor.

    `path`: None if there is no usable folder. `refused`: the reasons, one for each folder that was tried.
    `complete`: whether the folder had all kernels when it was selected. `broken`: why it was given up since.
    """

    def __init__(self, facts: Iterable[str]) -> None:
        self.name = PREFIX + fingerprint(facts)
        self.refused: list[str] = []
        self.broken: str | None = None
        self.complete = False
        self.path: Path | None = None
        for parent in _candidate_folders():
            problem = self._use(parent)
            if problem is None:
                return
            self.refused.append(f"{parent}: {problem}")

    def _use(self, parent: Path) -> str | None:
        """Use the folder in `parent` if that is safe and possible; else return the reason."""
        try:
            inside = trusted_folder(parent, create=True)
            path = inside / self.name
            if not os.path.lexists(path):
                _remove_old(inside)
                with suppress(FileExistsError):  # another process has just created it
                    path.mkdir(mode=0o700)  # others cannot reach its files, whatever their modes
            _refuse_unsafe(path)
            _refuse_unsafe_files(path)
            complete = (path / _COMPLETE).exists()
        except UnsafeFolderError as error:
            return str(error)
        except OSError as error:
            return error.strerror or str(error)
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

        A process that dies releases the lock. If the file system has none, processes compile beside each other.
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


class UnsafeFolderError(Exception):
    """Another user than this one and root can replace a folder, or what is in it; the message says how."""


def trusted_folder(path: Path, *, create: bool = False) -> Path:
    """Return a folder's path without links, if only this user and root can replace a component of it.

    Each component and each link on the way belongs to this user or root, and others may not write to it. They may if
    it has the sticky bit, as /tmp: there they can neither rename nor remove what is not theirs. With `create`, missing
    folders are created, and checked like the others, since another user may have been first.

    Raises:
        UnsafeFolderError: it is not so.
        OSError: a component cannot be read or created.
    """
    at, ahead = Path("/"), list(reversed(path.absolute().parts[1:]))
    links = 0
    _refuse_unsafe(at, sticky=True)
    while ahead:
        name = ahead.pop()
        if name == "..":
            at = at.parent
            continue
        at /= name
        if create:
            with suppress(FileExistsError):
                at.mkdir(mode=0o755)
        if at.is_symlink():
            links += 1
            if links > _MOST_LINKS:
                raise OSError(errno.ELOOP, os.strerror(errno.ELOOP), str(path))
            _refuse_owner(at, at.lstat())
            target = at.readlink()
            at = Path("/") if target.is_absolute() else at.parent
            ahead += reversed(target.parts[1:] if target.is_absolute() else target.parts)
            continue
        _refuse_unsafe(at, sticky=True)
    return at


def _refuse_unsafe(folder: Path, *, sticky: bool = False) -> None:
    """Raise UnsafeFolderError if others may write to a folder; with `sticky`, not for one that has this bit."""
    found = folder.lstat()
    if not stat.S_ISDIR(found.st_mode):
        raise UnsafeFolderError(f"{folder} is not a folder")
    _refuse_owner(folder, found)
    if found.st_mode & _OTHERS_WRITE and not (sticky and found.st_mode & stat.S_ISVTX):
        raise UnsafeFolderError(f"others may write to {folder} ({stat.filemode(found.st_mode)})")


def _refuse_owner(path: Path, found: os.stat_result) -> None:
    if found.st_uid not in (os.geteuid(), 0):
        raise UnsafeFolderError(f"{path} belongs to another user ({found.st_uid})")


def _refuse_unsafe_files(folder: Path) -> None:
    """Raise UnsafeFolderError if others can have written to a file of a folder that is theirs no more."""
    reached = folder.lstat().st_mode & (stat.S_IXGRP | stat.S_IXOTH)
    for file in folder.iterdir():
        try:
            found = file.lstat()
        except FileNotFoundError:  # another process has just replaced it
            continue
        if not stat.S_ISREG(found.st_mode):
            raise UnsafeFolderError(f"{file} is not a file")
        _refuse_owner(file, found)
        if reached and found.st_mode & _OTHERS_WRITE:
            raise UnsafeFolderError(f"others may write to {file} ({stat.filemode(found.st_mode)})")


def fingerprint(facts: Iterable[str]) -> str:
    """Return a hash of facts and of all sources that kernels depend on.

    They are `otel_llm.core`, `otel_llm.slo.live` and `otel_llm.semconv`.
    """
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
    folders = {"core": core, "slo/live": ours / "slo" / "live"} | {f"core/{one.name}": one for one in inner}
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
    else:
        yield Path(sysconfig.get_path("data")) / "lib" / "otel-llm"
    stated = os.environ.get("XDG_CACHE_HOME", "")
    with suppress(RuntimeError):  # a user without a home
        yield (Path(stated) if os.path.isabs(stated) else Path.home() / ".cache") / "otel-llm"  # noqa: PTH117


def _remove_old(parent: Path) -> None:
    """Remove folders of other versions, except the last used ones."""
    with suppress(OSError):
        found = sorted(parent.glob(f"{PREFIX}*"), key=lambda path: path.lstat().st_mtime, reverse=True)
        for old in found[KEPT_FOLDERS:]:
            shutil.rmtree(old, ignore_errors=True)
