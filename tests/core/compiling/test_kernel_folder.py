"""Which folder a process keeps its kernels in, and which it refuses to read machine code from."""

from __future__ import annotations

import os
import sysconfig
from collections.abc import Callable
from importlib import resources
from pathlib import Path

import pytest
from support.core.kernel_package import kernel_package

from otel_llm.core.compiling.kernel_cache import KEPT_FOLDERS, KernelCache, fingerprint, why_unsafe

FACTS = ("Python 3.11.2", "numba 0.68.1", "skylake")


@pytest.fixture
def places(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> tuple[Path, Path]:
    """Return the folder of the installation and that of the user, of a process that names none itself."""
    monkeypatch.delenv("OTEL_LLM_CACHE_DIR", raising=False)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "user"))
    monkeypatch.setattr(sysconfig, "get_path", {"data": str(tmp_path / "installed")}.__getitem__)
    return tmp_path / "installed" / "lib" / "otel-llm", tmp_path / "user" / "otel-llm"


def refuse(monkeypatch: pytest.MonkeyPatch, place: Path) -> None:
    """Let nothing be written below a folder, as for another user than root."""
    make, allowed = Path.mkdir, os.access

    def mkdir(path: Path, mode: int = 0o777, parents: bool = False, exist_ok: bool = False) -> None:
        if path.is_relative_to(place) and not path.exists():
            raise PermissionError(13, "Permission denied", str(path))
        make(path, mode, parents, exist_ok)

    def access(path: Path, mode: int) -> bool:
        return not path.is_relative_to(place) and allowed(path, mode)

    monkeypatch.setattr(Path, "mkdir", mkdir)
    monkeypatch.setattr(os, "access", access)


def test_the_installation_keeps_them_where_it_can(places: tuple[Path, Path]) -> None:
    found = KernelCache(FACTS)
    assert found.path == places[0] / f"kernels-{fingerprint(FACTS)}"
    assert found.path.stat().st_mode & 0o777 == 0o700
    assert (found.complete, found.refused, places[1].exists()) == (False, [], False)
    found.seal()
    assert KernelCache(FACTS).complete


def test_the_users_cache_keeps_them_where_the_installation_cannot(
    places: tuple[Path, Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    refuse(monkeypatch, places[0])
    found = KernelCache(FACTS)
    assert found.path is not None
    assert found.path.parent == places[1]
    assert found.refused == [f"{places[0]}: Permission denied"]


def test_what_the_installation_brings_is_used_though_it_cannot_be_written_to(
    places: tuple[Path, Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    KernelCache(FACTS).seal()
    refuse(monkeypatch, places[0])
    found = KernelCache(FACTS)
    assert found.path is not None
    assert (found.path.parent, found.complete) == (places[0], True)


def test_half_of_the_kernels_in_a_folder_that_cannot_be_written_to_are_none(
    places: tuple[Path, Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    KernelCache(FACTS)
    refuse(monkeypatch, places[0])
    found = KernelCache(FACTS)
    assert found.path is not None
    assert found.path.parent == places[1]
    assert found.refused == [f"{places[0]}: its kernels are not complete, and it cannot be written to"]


def test_a_user_without_a_home_still_runs(places: tuple[Path, Path], monkeypatch: pytest.MonkeyPatch) -> None:
    refuse(monkeypatch, places[0])
    monkeypatch.delenv("XDG_CACHE_HOME")

    def home(_: type[Path]) -> Path:
        raise RuntimeError("Could not determine home directory.")

    monkeypatch.setattr(Path, "home", classmethod(home))
    found = KernelCache(FACTS)
    assert (found.path, len(found.refused)) == (None, 1)
    found.seal()  # there is nothing to note


def somebody_else(folder: Path, _: pytest.MonkeyPatch, /) -> str:
    if os.geteuid() == 0:
        os.chown(folder, 12345, 12345)
    return "it belongs to another user ("


def the_group(folder: Path, _: pytest.MonkeyPatch, /) -> str:
    folder.chmod(0o770)
    return "others may write to it (drwxrwx---)"


def everybody(folder: Path, _: pytest.MonkeyPatch, /) -> str:
    folder.chmod(0o1777)
    return "others may write to it (drwxrwxrwt)"


def a_link(folder: Path, _: pytest.MonkeyPatch, /) -> str:
    folder.rename(folder.with_name("elsewhere"))
    folder.symlink_to(folder.with_name("elsewhere"))
    return "it is not a folder"


def a_file(folder: Path, _: pytest.MonkeyPatch, /) -> str:
    for file in folder.iterdir():
        file.unlink()
    folder.rmdir()
    folder.touch()
    return "it is not a folder"


@pytest.mark.parametrize("done_to_it", [somebody_else, the_group, everybody, a_link, a_file])
def test_machine_code_that_somebody_else_may_have_put_there_is_not_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, done_to_it: Callable[[Path, pytest.MonkeyPatch], str]
) -> None:
    monkeypatch.setenv("OTEL_LLM_CACHE_DIR", str(tmp_path))
    first = KernelCache(FACTS)
    assert first.path is not None
    first.seal()
    problem = done_to_it(first.path, monkeypatch)
    if done_to_it is somebody_else and os.geteuid() != 0:
        monkeypatch.setattr(os, "geteuid", lambda: os.getuid() + 1)
    found = KernelCache(FACTS)
    assert (found.path, found.complete) == (None, False)
    assert found.refused[0].startswith(f"{tmp_path}: {problem}")


def test_what_root_has_made_is_read_by_every_user(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "geteuid", lambda: 12345)
    assert why_unsafe(Path("/usr")) is None


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
    files = [*package.core.rglob("*.py"), package.root / "otel_llm" / "semconv.py"]
    for file in files:
        file.write_bytes(file.read_bytes().replace(b"a", b"b") + b"#")
        names.add(fingerprint(FACTS))
    (package.core / "steps.py").rename(package.core / "paces.py")
    names.add(fingerprint(FACTS))
    assert len(names) == 3 + len(files) + 1
    (package.core / "notes.txt").touch()
    assert fingerprint(FACTS) in names
