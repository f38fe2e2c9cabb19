"""Which folder a process keeps its kernels in, and which it refuses to read machine code from."""

from __future__ import annotations

import os
import shutil
import sysconfig
from collections.abc import Callable
from importlib import resources
from pathlib import Path

import pytest
from support.core.kernel_package import kernel_package

from otel_llm.core.compiling.kernel_cache import KEPT_FOLDERS, KernelCache, fingerprint, trusted_folder

FACTS = ("Python 3.11.2", "numba 0.68.1", "skylake")


@pytest.fixture
def folders(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> tuple[Path, Path]:
    """Return the folder of the installation and that of the user, of a process that names none itself."""
    monkeypatch.delenv("OTEL_LLM_CACHE_DIR", raising=False)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "user"))
    monkeypatch.setattr(sysconfig, "get_path", {"data": str(tmp_path / "installed")}.__getitem__)
    return tmp_path / "installed" / "lib" / "otel-llm", tmp_path / "user" / "otel-llm"


def refuse(monkeypatch: pytest.MonkeyPatch, refused: Path) -> None:
    """Let nothing be written below a folder, as for another user than root."""
    make, allowed = Path.mkdir, os.access

    def mkdir(path: Path, mode: int = 0o777, parents: bool = False, exist_ok: bool = False) -> None:
        if path.is_relative_to(refused) and not path.exists():
            raise PermissionError(13, "Permission denied", str(path))
        make(path, mode, parents, exist_ok)

    def access(path: Path, mode: int) -> bool:
        return not path.is_relative_to(refused) and allowed(path, mode)

    monkeypatch.setattr(Path, "mkdir", mkdir)
    monkeypatch.setattr(os, "access", access)


def test_the_installation_keeps_them_where_it_can(folders: tuple[Path, Path]) -> None:
    found = KernelCache(FACTS)
    assert found.path == folders[0] / f"kernels-{fingerprint(FACTS)}"
    assert found.path.stat().st_mode & 0o777 == 0o700
    assert (found.complete, found.refused, folders[1].exists()) == (False, [], False)
    found.seal()
    assert KernelCache(FACTS).complete


def test_the_users_cache_keeps_them_where_the_installation_cannot(
    folders: tuple[Path, Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    refuse(monkeypatch, folders[0])
    found = KernelCache(FACTS)
    assert found.path is not None
    assert found.path.parent == folders[1]
    assert found.refused == [f"{folders[0]}: Permission denied"]


def test_what_the_installation_brings_is_used_though_it_cannot_be_written_to(
    folders: tuple[Path, Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    KernelCache(FACTS).seal()
    refuse(monkeypatch, folders[0])
    found = KernelCache(FACTS)
    assert found.path is not None
    assert (found.path.parent, found.complete) == (folders[0], True)


def test_half_of_the_kernels_in_a_folder_that_cannot_be_written_to_are_none(
    folders: tuple[Path, Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    KernelCache(FACTS)
    refuse(monkeypatch, folders[0])
    found = KernelCache(FACTS)
    assert found.path is not None
    assert found.path.parent == folders[1]
    assert found.refused == [f"{folders[0]}: its kernels are not complete, and it cannot be written to"]


def test_a_user_without_a_home_still_runs(folders: tuple[Path, Path], monkeypatch: pytest.MonkeyPatch) -> None:
    refuse(monkeypatch, folders[0])
    monkeypatch.delenv("XDG_CACHE_HOME")

    def home(_: type[Path]) -> Path:
        raise RuntimeError("Could not determine home directory.")

    monkeypatch.setattr(Path, "home", classmethod(home))
    found = KernelCache(FACTS)
    assert (found.path, len(found.refused)) == (None, 1)
    found.seal()  # there is nothing to note


Doing = Callable[[Path], str]
"""What is done to a folder or a file; returns what is said about it."""


def somebody_else(path: Path, /) -> str:
    os.chown(path, 12345, 12345)
    return "belongs to another user (12345)"


def a_link_of_somebody_else(path: Path, /) -> str:
    path.rename(path.with_name("elsewhere"))
    path.symlink_to("elsewhere")
    os.chown(path, 12345, 12345, follow_symlinks=False)
    return "belongs to another user (12345)"


def the_group(path: Path, /) -> str:
    path.chmod(0o770)
    return "(drwxrwx---)"


def everybody(path: Path, /) -> str:
    path.chmod(0o777)
    return "(drwxrwxrwx)"


def a_file(path: Path, /) -> str:
    shutil.rmtree(path)
    path.touch()
    return "is not a folder"


@pytest.fixture
def stated(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Return the folder that a process names, below others; without it there is none."""
    monkeypatch.setenv("OTEL_LLM_CACHE_DIR", str(tmp_path / "group" / "ours" / "cache"))
    monkeypatch.setenv("XDG_CACHE_HOME", "/dev/null")
    return tmp_path / "group" / "ours" / "cache"


needs_root = pytest.mark.skipif(os.geteuid() != 0, reason="no mount namespace")


@needs_root
@pytest.mark.parametrize("which", ["group", "ours", "cache", "kernels"])
@pytest.mark.parametrize("done_to_it", [somebody_else, a_link_of_somebody_else, the_group, everybody, a_file])
def test_machine_code_that_somebody_else_may_have_put_there_is_not_read(
    stated: Path, which: str, done_to_it: Doing
) -> None:
    first = KernelCache(FACTS)
    assert first.path is not None
    first.seal()
    component = {one.name: one for one in (first.path, *first.path.parents)}.get(which, first.path)
    says = done_to_it(component)
    found = KernelCache(FACTS)
    assert (found.path, found.complete) == (None, False)
    assert str(component) in found.refused[0]
    assert says in found.refused[0] or (which, done_to_it) == ("kernels", a_link_of_somebody_else)


@needs_root
def test_a_file_of_somebody_else_in_a_folder_of_ours_is_not_read(stated: Path) -> None:
    first = KernelCache(FACTS)
    assert first.path is not None
    planted = first.path / "a.nbi"
    planted.touch()
    planted.chmod(0o666)
    assert KernelCache(FACTS).path == first.path  # others cannot reach it
    first.path.chmod(0o755)
    assert KernelCache(FACTS).path is None
    first.path.chmod(0o700)
    os.chown(planted, 12345, 12345)
    assert KernelCache(FACTS).path is None
    planted.unlink()
    planted.symlink_to(stated / "b")
    assert KernelCache(FACTS).path is None


@needs_root
def test_in_a_folder_with_the_sticky_bit_only_what_is_ours_is_used(stated: Path) -> None:
    first = KernelCache(FACTS)
    stated.parent.chmod(0o1777)
    assert KernelCache(FACTS).path == first.path
    os.chown(stated, 12345, 12345)  # another user has made it first
    assert KernelCache(FACTS).path is None
    os.chown(stated, 0, 0)
    stated.chmod(0o1777)
    assert KernelCache(FACTS).path == first.path
    assert first.path is not None
    first.path.chmod(0o1777)  # new files could be put there
    assert KernelCache(FACTS).path is None


def test_links_of_ours_are_followed_and_the_path_has_none(stated: Path, tmp_path: Path) -> None:
    (tmp_path / "volume" / "cache").mkdir(parents=True)
    (tmp_path / "group" / "ours").mkdir(parents=True)
    (tmp_path / "to").symlink_to(tmp_path / "volume")
    stated.symlink_to("../../to/../volume/./cache")
    found = KernelCache(FACTS)
    assert found.path is not None
    assert found.path.parent == tmp_path / "volume" / "cache"
    (tmp_path / "to").unlink()
    assert found.path.exists()
    stated.unlink()
    stated.symlink_to("cache")
    assert KernelCache(FACTS).refused[0] == f"{stated}: Too many levels of symbolic links"


@needs_root
def test_nothing_is_created_in_a_folder_that_is_refused(stated: Path, tmp_path: Path) -> None:
    (tmp_path / "group").mkdir()
    os.chown(tmp_path / "group", 12345, 12345)
    assert KernelCache(FACTS).path is None
    assert [*(tmp_path / "group").iterdir()] == []


def test_folders_are_created_so_that_they_are_used_again_whatever_the_umask(stated: Path) -> None:
    before = os.umask(0)
    try:
        assert KernelCache(FACTS).path is not None
        assert KernelCache(FACTS).path is not None
    finally:
        os.umask(before)


def test_a_user_with_no_folder_of_its_own_compiles_at_each_start(stated: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A container of any user id, whose home belongs to the group of root (OpenShift)."""
    stated.mkdir(parents=True)
    stated.chmod(0o770)
    monkeypatch.setattr(os, "geteuid", lambda: 1_000_650_000)
    assert KernelCache(FACTS).path is None


def test_what_root_has_made_is_read_by_every_user(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "geteuid", lambda: 12345)
    assert trusted_folder(Path("/usr/lib")) == Path("/usr/lib").resolve()


def test_only_the_folders_used_last_are_left_where_a_new_one_is_made(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("OTEL_LLM_CACHE_DIR", str(tmp_path))
    (tmp_path / "notes").mkdir()
    for number in range(KEPT_FOLDERS + 3):
        folder = tmp_path / f"kernels-{number:016x}"
        folder.mkdir()
        (folder / "complete").touch()
        os.utime(folder, (number, number))
    found = KernelCache(FACTS)
    assert found.path is not None
    left = {path.name for path in tmp_path.iterdir()}
    assert left == {"notes", found.path.name, *(f"kernels-{number:016x}" for number in range(3, KEPT_FOLDERS + 3))}
    os.utime(found.path, (0, 0))
    KernelCache(FACTS)
    assert found.path.stat().st_mtime > 0  # it was used


def test_every_source_and_every_version_is_in_the_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    package = kernel_package(tmp_path)
    monkeypatch.setattr(resources, "files", lambda _: package.root / "otel_llm")
    names = {fingerprint(FACTS), fingerprint(FACTS[:2]), fingerprint(("Python 3.11.3", *FACTS[1:]))}
    ours = package.root / "otel_llm"
    files = [*package.core.rglob("*.py"), *(ours / "slo" / "live").glob("*.py"), ours / "semconv.py"]
    for file in files:
        file.write_bytes(file.read_bytes().replace(b"a", b"b") + b"#")
        names.add(fingerprint(FACTS))
    (package.core / "steps.py").rename(package.core / "paces.py")
    names.add(fingerprint(FACTS))
    assert len(names) == 3 + len(files) + 1
    (package.core / "notes.txt").touch()
    assert fingerprint(FACTS) in names
