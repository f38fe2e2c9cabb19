"""docs/collector-failures.md, "What a sender is answered": its tables and the code agree on every status, both ways."""

from __future__ import annotations

import ast
import re
from http import HTTPStatus
from pathlib import Path
from typing import NamedTuple

import pytest

from otel_llm.collector.receive import http_listener, otlp_http
from otel_llm.collector.receive.errors import ANSWERS, Answer, BusyError, TooSlowError, answer
from otel_llm.collector.receive.refusal_counts import BEHIND, NOT_RECEIVED, SOURCE, RefusalCounts
from otel_llm.collector.web import app
from otel_llm.live import web_routes
from otel_llm.shared.errors import ForbiddenError, RefusalError, UnauthenticatedError, UnavailableError
from otel_llm.shared.web import acceptor

PAGE = Path(__file__).parents[2] / "docs" / "collector-failures.md"
FLOW: dict[str, type[RefusalError]] = {BEHIND: BusyError, "streams": BusyError, "stopping": UnavailableError}
"""Reasons that the pipeline counts itself, in words of its own."""
GRPC = {ForbiddenError: "-", TooSlowError: "CANCELLED"}
"""What is answered over gRPC if `ANSWERS` has a code that only the body of an HTTP answer has."""
OF_THE_PARSER = {HTTPStatus.BAD_REQUEST.value}
"""What uvicorn answers if it cannot parse a request, and Starlette to a preflight."""
OF_THE_ROUTER = {404, 405}


class Row(NamedTuple):
    what: str
    grpc: str
    http: str
    reason: str
    todo: str

    @property
    def statuses(self) -> set[int]:
        return {int(found) for found in re.findall(r"\b\d{3}\b", self.http)}

    @property
    def reasons(self) -> list[str]:
        return re.findall(r"`(\w+)`", self.reason)


def tables() -> list[list[list[str]]]:
    """Return the tables of the section, each as the cells of its rows, without headings."""
    section = PAGE.read_text(encoding="utf-8").partition("\n## What a sender is answered\n")[2].partition("\n## ")[0]
    blocks = [block.splitlines() for block in section.split("\n\n") if block.lstrip().startswith("|")]
    return [[[cell.strip() for cell in line.strip("|").split("|")] for line in block[2:]] for block in blocks]


EXPORTS = [Row(*cells) for cells in tables()[0]]
WEB = tables()[1]
KINDS = {row.reason: kind for kind, row in ANSWERS if kind is not UnavailableError} | FLOW


def cells_of(kind: type[RefusalError]) -> tuple[str, str]:
    """Return what the code answers over gRPC and over HTTP, as the table writes it."""
    row: Answer = answer(kind("x"))
    again = bool(kind.retry_after_s)
    grpc = GRPC.get(kind, row.grpc + (" with RetryInfo" if again else ""))
    return grpc, str(row.http) + (", Retry-After" if again else "")


def named_statuses(*modules: object) -> set[int]:
    """Return the statuses that a module names as `HTTPStatus.NAME`."""
    found = set()
    for module in modules:
        for node in ast.walk(ast.parse(Path(str(getattr(module, "__file__", ""))).read_text(encoding="utf-8"))):
            if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name) and node.value.id == "HTTPStatus":
                found.add(HTTPStatus[node.attr].value)
    return found


def test_there_are_tables() -> None:
    assert len(tables()) == 2
    assert len(EXPORTS) > 15
    assert len(WEB) >= 5


@pytest.mark.parametrize("reason", KINDS)
def test_what_the_code_answers_is_in_the_table(reason: str) -> None:
    assert cells_of(KINDS[reason]) in [(row.grpc, row.http) for row in EXPORTS if reason in row.reasons]


@pytest.mark.parametrize("row", [row for row in EXPORTS if row.reasons], ids=lambda row: row.what[:40])
def test_what_is_in_the_table_is_what_the_code_answers(row: Row) -> None:
    reasons = [reason for reason in row.reasons if reason != NOT_RECEIVED]
    assert reasons
    for reason in reasons:
        kind = KINDS[reason]
        grpc, http = cells_of(kind)
        assert row.grpc == grpc
        assert row.http == http or (reason == "unsupported" and row.statuses == OF_THE_ROUTER)
        assert (f"send it again after {kind.retry_after_s} s" in row.todo) == bool(kind.retry_after_s)
        assert row.todo.startswith("drop it") != bool(kind.retry_after_s)


def test_every_reason_of_the_metric_is_in_the_table() -> None:
    counted = {key.removeprefix(SOURCE) for key in RefusalCounts().counts()}
    assert counted | FLOW.keys() == {reason for row in EXPORTS for reason in row.reasons}


def test_every_status_of_the_connections_is_in_the_table_and_no_other() -> None:
    answered = named_statuses(http_listener, acceptor) | OF_THE_PARSER
    rows = [row for row in EXPORTS if not row.reason]
    assert answered == {status for row in rows for status in row.statuses}
    for row in rows:
        assert ("Retry-After" in row.http) == (row.statuses == {HTTPStatus.SERVICE_UNAVAILABLE})
        assert not row.statuses or row.grpc in ("closed", "RESOURCE_EXHAUSTED", cells_of(UnavailableError)[0])


def test_no_module_of_the_receivers_answers_a_status_that_the_table_lacks() -> None:
    receivers = list(Path(otlp_http.__file__).parent.rglob("*.py"))
    assert len(receivers) > 10
    listed = {status for row in EXPORTS for status in row.statuses}
    for path in receivers:
        assert named_statuses(type("", (), {"__file__": path})) <= listed, path
    assert otlp_http.CODE_OF_HTTP.keys() == OF_THE_ROUTER
    assert listed - {HTTPStatus.OK} == (
        {row.http for _, row in ANSWERS} | OF_THE_ROUTER | OF_THE_PARSER | named_statuses(http_listener, acceptor)
    )


def test_the_web_port() -> None:
    guarded = {answer(kind("x")).http for kind in (UnauthenticatedError, ForbiddenError)}
    answered = named_statuses(app, web_routes) - {HTTPStatus.OK} | guarded | OF_THE_ROUTER
    assert answered == {int(found) for cells in WEB for found in re.findall(r"\d{3}", cells[1])}


def test_every_row_says_what_to_do() -> None:
    assert all(row.todo for row in EXPORTS)
    assert all(cells[2] for cells in WEB)
