"""Compiled kernels are kept on disk: found by the next process, made anew when anything they depend on has changed."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from support.core.kernel_package import KernelPackage, kernel_package
from support.namespaces import in_a_namespace_of_its_own
from support.patience import WAIT_S

pytest.importorskip("numba", reason="no numba: kernels cannot be compiled")

ONCE = r"compiling the kernels, once, about \d+ s; kept in "
TOOK = r"compiled the kernels in \d+\.\d s"


@pytest.fixture(scope="module")
def first(tmp_path_factory: pytest.TempPathFactory) -> tuple[KernelPackage, dict[str, Any]]:
    """Return a package whose kernels are kept, and what the process reported that compiled them."""
    package = kernel_package(tmp_path_factory.mktemp("first"))
    return package, package.run()


@pytest.fixture
def kept(first: tuple[KernelPackage, dict[str, Any]], tmp_path: Path) -> KernelPackage:
    """Return a copy of that package, in another place."""
    return first[0].copy(tmp_path)


def test_the_first_process_says_what_it_does(first: tuple[KernelPackage, dict[str, Any]]) -> None:
    package, found = first
    assert (found["total"], found["hits"], found["misses"]) == (15, 0, 1)
    assert Path(found["folder"]).parent == package.cache
    assert re.fullmatch(ONCE + re.escape(found["folder"]), found["said"][0])
    assert re.fullmatch(TOOK, found["said"][1])
    assert found["prepared"]
    assert found["config"] == ["", ""]  # numba's own settings, for who else uses it here


def test_the_second_process_takes_what_the_first_has_kept_and_says_nothing(kept: KernelPackage) -> None:
    files = kept.files()
    for file in kept.core.rglob("*.py"):  # as a wheel that is installed again: other times, the same content
        os.utime(file, (1, 1))
    second = kept.run()
    assert (second["total"], second["hits"], second["misses"], second["said"]) == (15, 1, 0, [])
    assert kept.files() == files


def test_a_constant_that_changes_in_another_file_is_compiled_anew(kept: KernelPackage) -> None:
    steps = kept.core / "steps.py"
    size = steps.stat().st_size
    steps.write_text(steps.read_text().replace("STEP = 1", "STEP = 3"))
    os.utime(steps, (1, 1))
    assert steps.stat().st_size == size
    second = kept.run()
    assert (second["total"], second["misses"], len(list(kept.cache.iterdir()))) == (25, 1, 2)


def test_bounds_checks_are_compiled_in_where_they_are_asked_for(kept: KernelPackage) -> None:
    checked = kept.run(NUMBA_BOUNDSCHECK="1")
    assert (checked["misses"], len(list(kept.cache.iterdir()))) == (1, 2)


def test_of_processes_that_start_at_once_one_compiles_and_the_others_take_what_it_has_kept(tmp_path: Path) -> None:
    package = kernel_package(tmp_path)
    all_of_them = [
        subprocess.Popen(package.command(), env=package.environment(), cwd=package.root, stdout=subprocess.PIPE)
        for _ in range(3)
    ]
    found = [json.loads(one.communicate(timeout=WAIT_S)[0]) for one in all_of_them]
    assert [one["total"] for one in found] == [15, 15, 15]
    assert (sum(one["misses"] for one in found), sum(one["hits"] for one in found)) == (1, 2)
    later = package.run()
    assert (later["total"], later["hits"], later["said"]) == (15, 1, [])


def read_only(package: KernelPackage) -> tuple[str, ...]:
    """Return what runs a command that can write neither to the cache nor to a folder for temporary files."""
    script = """
        for at in "$1" /tmp /var/tmp; do mount --bind "$at" "$at" && mount -o remount,ro,bind "$at"; done
        shift; exec "$@"
    """
    package.private.mkdir(exist_ok=True)
    return (*in_a_namespace_of_its_own(), "sh", "-ec", script, "sh", str(package.cache))


def test_what_an_image_has_kept_is_used_where_nothing_can_be_written(kept: KernelPackage) -> None:
    found = kept.run(before=read_only(kept))
    assert (found["total"], found["hits"], found["said"]) == (15, 1, [])


def test_where_nothing_can_be_kept_the_kernels_are_compiled_and_that_is_reported(kept: KernelPackage) -> None:
    shutil.rmtree(kept.cache)
    kept.cache.mkdir()
    found = kept.run(before=read_only(kept))
    assert (found["total"], found["misses"], found["folder"]) == (15, 1, None)
    assert re.fullmatch(
        rf"compiling the kernels, about \d+ s at every start: {kept.cache}: Read-only file system; "
        f"{kept.private}/otel-llm: Read-only file system; OTEL_LLM_CACHE_DIR names another folder",
        found["said"][0],
    )


@pytest.mark.parametrize(("ending", "left"), [(".nbi", 100), (".nbc", 0)])
def test_a_file_cut_short_by_a_crash_is_reported_and_the_next_start_makes_all_anew(
    kept: KernelPackage, ending: str, left: int
) -> None:
    (file,) = kept.cache.rglob(f"*{ending}")
    os.truncate(file, left)
    found = kept.run()
    assert found["total"] == 15
    assert re.fullmatch(TOOK + ", not kept: .+", found["said"][0])
    assert list(kept.cache.iterdir()) == []


def test_a_folder_that_others_may_write_to_is_not_read_and_a_private_one_is(kept: KernelPackage) -> None:
    (folder,) = kept.cache.iterdir()
    kept.cache.chmod(0o777)
    found = kept.run()
    private = kept.private / "otel-llm" / folder.name
    assert (found["total"], found["hits"], found["folder"]) == (15, 0, str(private))
    reason = f"{kept.cache}: others may write to {kept.cache} (drwxrwxrwx)"
    assert found["said"][0] == f"OTEL_LLM_CACHE_DIR is not used: {reason}"
    kept.private.chmod(0o777)
    found = kept.run()
    assert (found["total"], found["hits"], found["folder"]) == (15, 0, None)
    assert f"others may write to {kept.private} (drwxrwxrwx)" in found["said"][0]


HOST = """
import json, sys
sys.path.insert(0, sys.argv[1])
import numba
import otel_llm.core.totals
import host
print(json.dumps(host.twice.stats.cache_path))
"""


def test_a_host_that_uses_numba_keeps_its_own_functions_where_it_did(kept: KernelPackage, tmp_path: Path) -> None:
    (tmp_path / "host.py").write_text(
        "import numba\n\n\n@numba.njit('int64(int64)', cache=True)\ndef twice(value):\n    return 2 * value\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", HOST, str(tmp_path)],
        env=kept.environment(), cwd=kept.root, capture_output=True, text=True, timeout=WAIT_S, check=True,
    )  # fmt: skip
    assert json.loads(done.stdout) == str(tmp_path / "__pycache__")


def set_up(package: KernelPackage, **more: str) -> subprocess.CompletedProcess[str]:
    command = ["sh", "-c", 'umask 0; exec "$0" -m otel_llm.core', sys.executable]
    return subprocess.run(
        command,
        env=package.environment(**more), cwd=package.root, capture_output=True, text=True, timeout=WAIT_S, check=False,
    )  # fmt: skip


def test_the_command_of_set_ups_compiles_says_where_and_lets_others_read_what_root_made(tmp_path: Path) -> None:
    package = kernel_package(tmp_path)
    done = set_up(package)
    assert (done.returncode, done.stderr) == (0, "")
    assert re.fullmatch(ONCE + r"(.+)\n" + TOOK + r"\nthe kernels are in \1\n", done.stdout)
    (folder,) = package.cache.iterdir()
    modes = {path.stat().st_mode & 0o777 for path in folder.iterdir()}
    if os.geteuid() == 0:
        assert (folder.stat().st_mode & 0o777, modes) == (0o755, {0o644})
    else:
        assert folder.stat().st_mode & 0o777 == 0o700
    again = set_up(package)
    assert (again.returncode, again.stdout) == (0, f"the kernels are in {folder}\n")


def test_the_command_of_set_ups_fails_where_its_work_would_be_lost(kept: KernelPackage) -> None:
    nowhere = set_up(kept, OTEL_LLM_CACHE_DIR="/dev/null", XDG_CACHE_HOME="/dev/null")
    assert nowhere.returncode == 1
    assert "/dev/null: /dev/null is not a folder" in nowhere.stdout
