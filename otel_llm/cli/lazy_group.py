"""A group of commands whose modules, and the kernels that they need, are loaded when the command runs."""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import click

from otel_llm.cli.output.echo import echo
from otel_llm.shared.memory import keep_one_heap

if TYPE_CHECKING:
    from collections.abc import Mapping

OURS: Final = ("otel_llm",)


class Lazy(NamedTuple):
    """The location of a command, and its help in a line."""

    module: str
    attribute: str
    words: str
    kernels: bool = False
    """Whether its module imports compiled kernels."""
    one_heap: bool = False
    """Whether the process must return memory to the system: malloc is configured before a library starts threads."""


class MissingExtraError(click.UsageError):
    """A dependency of a command is not installed; exit code 2."""

    def __init__(self, command: str, package: str) -> None:
        super().__init__(f"`otel-llm {command}` needs {package}: pip install 'otel-llm[collector]'")


class LazyGroup(click.Group):
    """A group that imports a command's module only to run it: `--help` is fast, and a missing extra is named.

    Args:
        table: the commands by name, in the order of the help.
    """

    def __init__(self, *arguments: Any, table: Mapping[str, Lazy], **options: Any) -> None:
        super().__init__(*arguments, **options)
        self._table = table

    def list_commands(self, ctx: click.Context) -> list[str]:  # noqa: ARG002
        """Return the names of the commands."""
        return list(self._table)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        """Import one command; return None if there is none of this name.

        Raises:
            MissingExtraError: a dependency of it is not installed.
            UsageError: `OTEL_LLM_CORE` asks for kernels that cannot be compiled.
        """
        if cmd_name not in self._table:
            return None
        module, attribute, _, kernels, one_heap = self._table[cmd_name]
        try:
            if one_heap:
                keep_one_heap()
            if kernels:
                _compile_kernels()
            command = getattr(importlib.import_module(module), attribute)
        except ModuleNotFoundError as missing:
            if missing.name is None or missing.name.split(".")[0] in OURS:
                raise
            groups = ctx.command_path.split()[1:]
            raise MissingExtraError(" ".join([*groups, cmd_name]), missing.name) from missing
        assert isinstance(command, click.Command)  # noqa: S101
        return command

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:  # noqa: ARG002
        """Write the list of commands without importing them."""
        with formatter.section("Commands"):
            formatter.write_dl([(name, lazy.words) for name, lazy in self._table.items()])


def _compile_kernels() -> None:
    """Compile the kernels, with a line on stderr, if they are not cached: an import would compile them in silence.

    Raises:
        UsageError: `OTEL_LLM_CORE` asks for kernels that cannot be compiled.
    """
    from otel_llm.core.compiling.mode import ModeError

    try:
        from otel_llm.core.compiling.warm import prepare

        prepare(lambda line: echo(line, err=True))
    except ModeError as wrong:
        raise click.UsageError(str(wrong)) from wrong
