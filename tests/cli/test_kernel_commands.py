"""Commands that need kernels have them compiled first, with a line on stderr; all others import none."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import click
import pytest
from click.testing import CliRunner
from support.commands import environment
from support.patience import WAIT_S
from support.vectors import FOLDER

from otel_llm.cli import main
from otel_llm.cli.lazy_group import Lazy, LazyGroup
from otel_llm.cli.rules_commands import rules_command
from otel_llm.core.compiling import warm

ROOT = Path(__file__).parents[2]
EVERY = {**main.COMMANDS, **{f"rules {name}": lazy for name, lazy in rules_command.COMMANDS.items()}}
LIGHT = [lazy.module for lazy in EVERY.values() if not lazy.kernels]


def python(code: str, **more: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-c", code],
        env=environment() | more, cwd=ROOT, capture_output=True, text=True, timeout=WAIT_S, check=False,
    )  # fmt: skip


def test_commands_that_are_declared_to_need_no_kernels_import_none() -> None:
    check = ["rules", "check", "rules", "--slo", "rules/slo.yaml"]
    code = (
        f"import importlib, sys\nfor name in {LIGHT}: importlib.import_module(name)\n"
        "from otel_llm.cli.main import main\n"
        f"for arguments in (['--help'], {check}):\n"
        "    try: main(arguments)\n    except SystemExit as end: assert end.code == 0\n"
        "assert 'otel_llm.rules.lint.check' in sys.modules\n"
        "sys.exit(str([name for name in ('numba', 'otel_llm.core.kernel') if name in sys.modules]))"
    )
    done = python(code)
    assert done.stderr.splitlines()[-1] == "[]"


@pytest.fixture
def prepared(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Have the kernels said to be compiled; return the modules of commands that were there before that."""
    imported: list[str] = []

    def prepare(say: Callable[[str], None]) -> None:
        say("compiling the kernels")
        imported.extend(name for name in sys.modules if name == "slow_command")

    monkeypatch.setattr(warm, "prepare", prepare)
    return imported


def test_kernels_are_compiled_before_the_module_of_the_command_imports_them(
    prepared: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.syspath_prepend(tmp_path)
    (tmp_path / "slow_command.py").write_text(
        "import click\n@click.command()\ndef slow():\n    '''Be slow.'''\n    click.echo('{}')\n"
    )
    table = {"slow": Lazy("slow_command", "slow", "Be slow.", True), "none": Lazy("no_module", "none", "None.")}
    group = LazyGroup("group", table=table)
    listed = CliRunner().invoke(group, ["--help"])
    assert (listed.exit_code, listed.stderr) == (0, "")
    assert "slow  Be slow." in listed.stdout
    done = CliRunner().invoke(group, ["slow"])
    sys.modules.pop("slow_command")
    assert (done.exit_code, done.stdout, done.stderr) == (0, "{}\n", "compiling the kernels\n")
    assert prepared == []
    missing = CliRunner().invoke(group, ["none"])
    assert missing.exit_code == 2
    assert "needs no_module: pip install 'otel-llm[collector]'" in missing.stderr


def test_every_command_is_where_the_table_says() -> None:
    for name, lazy in EVERY.items():
        module = __import__(lazy.module, fromlist=["_"])
        assert isinstance(getattr(module, lazy.attribute), click.Command), name


AUDIT = ["audit", str(FOLDER / "rows.jsonl"), "--format", "json"]


@pytest.mark.parametrize("arguments", [AUDIT, ["collect"], ["rules", "test", "x"]], ids=["audit", "collect", "rules"])
def test_a_mode_that_cannot_be_followed_is_a_usage_error(arguments: list[str]) -> None:
    done = python(f"from otel_llm.cli.main import main; main({arguments})", OTEL_LLM_CORE="fast")
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr.splitlines()[-1] == "Error: OTEL_LLM_CORE is 'fast': it may be plain or compiled, or unset"
    assert "Traceback" not in done.stderr


def test_compiled_without_numba_names_the_remedy() -> None:
    code = f"import sys; sys.modules['numba'] = None; from otel_llm.cli.main import main; main({AUDIT})"
    done = python(code, OTEL_LLM_CORE="compiled")
    assert done.returncode == 2
    assert done.stderr.endswith("numba is not installed: pip install 'otel-llm[collector]'\n")


def test_a_plain_audit_finds_what_a_compiled_one_finds() -> None:
    compiled, plain = (
        python(f"from otel_llm.cli.main import main; main({AUDIT})", OTEL_LLM_CORE=mode)
        for mode in ("compiled", "plain")
    )
    assert (compiled.returncode, plain.returncode) == (0, 0), plain.stderr
    assert json.loads(plain.stdout) == json.loads(compiled.stdout)
    assert "kernels" not in plain.stderr
