"""docs/relay.md, "What the relay refuses itself": the table and the code agree on every status, both ways."""

from __future__ import annotations

import ast
import re
from pathlib import Path

from otel_llm.relay import answers, bodies, connection, server

PAGE = Path(__file__).parents[2] / "docs" / "relay.md"


def numbers(path: str) -> set[int]:
    """Return the whole numbers of a module that are statuses of an error."""
    nodes = ast.walk(ast.parse(Path(path).read_text(encoding="utf-8")))
    found = {node.value for node in nodes if isinstance(node, ast.Constant) and type(node.value) is int}
    return {number for number in found if 400 <= number < 600}


def test_the_table_has_every_status_that_the_relay_answers_itself() -> None:
    section = PAGE.read_text(encoding="utf-8").partition("\nWhat the relay refuses itself:\n\n")[2]
    cells = re.findall(r"^\| ([\d, ]+) \|", section.partition("\n\n")[0], re.MULTILINE)
    listed = {int(status) for cell in cells for status in cell.split(",")}
    parsed = {400}  # aiohttp, of what is no HTTP request
    modules = (server, bodies, connection, answers)
    answered = {status for module in modules for status in numbers(str(module.__file__))} | parsed
    assert listed == answered - {answers.CLIENT_LEFT}
