"""docs/security.md: the numbers in its tables are those of the code, and each table row is held against something."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from otel_llm import semconv
from otel_llm.actions.alerts import places
from otel_llm.actions.delivery import durable_queue as courier
from otel_llm.actions.execute import action_receiver as receiving
from otel_llm.actions.execute import circuit_breaker, lanes
from otel_llm.actions.sinks import live_state, write_limits
from otel_llm.cli import web_client as asking
from otel_llm.collector import inbox
from otel_llm.collector.receive import gunzip
from otel_llm.collector.settings import Limits
from otel_llm.config import secret_files, tls, yaml_file
from otel_llm.config.file_defaults import PRIVATE
from otel_llm.config.sections import DecisionSettings
from otel_llm.core import limits as message_limits
from otel_llm.core.scanning import parts
from otel_llm.evaluate.registry import RegistryLimits
from otel_llm.export import host_log
from otel_llm.export import settings as export_settings
from otel_llm.export.transport import whole_exchange
from otel_llm.formats.io import bytestream, journal_format, skipped
from otel_llm.formats.recordings import parquet_claims
from otel_llm.journal import retention
from otel_llm.live import exposition, feed, history, labels, user_metrics, viewers
from otel_llm.live.page import PIECE_BYTES
from otel_llm.relay import bodies
from otel_llm.relay.settings import Limits as RelayLimits
from otel_llm.relay.splice import large_body
from otel_llm.rules.language import parser
from otel_llm.slo.live import reading_curve

PAGE = Path(__file__).parents[2] / "docs" / "security.md"
HOUR_S = 3600
CONSTANTS: dict[str, object] = {
    "tokens of one event": message_limits.MAX_EVENT_TOKENS,
    "tokens of one stream, and of one span": message_limits.MAX_TOKENS,
    "bytes of one stream's segments that wait for an earlier one": RegistryLimits().held_bytes,
    "tokens of one message": message_limits.MAX_MESSAGE_TOKENS,
    "decompressed bytes for each compressed one, beyond 1 MiB": gunzip.MAX_RATIO,
    "ns that the small parts of an export may cost, for each of its bytes": parts.NS_PER_BYTE,
    "ns that they may cost however few bytes there are": parts.FREE_NS,
    "tokens of an export however few bytes there are": message_limits.FREE_MESSAGE_TOKENS,
    "further tokens for each of its bytes": message_limits.TOKENS_PER_BYTE,
    "bytes of exports that wait at a listener": inbox.QUEUED_BYTES,
    "finished requests remembered, at least": RegistryLimits().tombstones,
    "token times on spans of other instrumentations that wait for segments": RegistryLimits().waiting_times,
    "bytes of headers": RelayLimits().header_bytes,
    "bytes of an unpacked body for each compressed one, above 64 KiB": bodies.MAX_RATIO,
    "bytes of JSON that are parsed at one time; more is divided by a kernel, in a thread": large_body.LARGE_BYTES,
    "members of a completion, and messages of it that are looked at": large_body.MOST_CHILDREN,
    "replies to all prompts of a streamed completion": semconv.MAX_CHOICES,
    "bytes of a signed command": receiving.MOST_BODY_BYTES,
    "sets of labels": user_metrics.MAX_SERIES,
    "length of a label's value": labels.MAX_LABEL_CHARS,
    "renderings": exposition.SHARED_NS // 10**9,
    "snapshots of the live page": int(feed.EVERY_S),
    "messages that wait for a viewer": viewers.MOST_UNSENT,
    "seconds until a viewer must bring its token again": int(feed.MOST_AGE_S),
    "streams on a page": live_state.PAGE_STREAMS,
    "points of a followed stream's curve": reading_curve.EVEN_POINTS + 2 * reading_curve.GAP_POINTS,
    "samples of its sparklines": history.SAMPLES,
    "bytes of a file of settings, rules or classes": yaml_file.MAX_BYTES,
    "depth of such a file": yaml_file.MAX_DEPTH,
    "characters of a rule's expression": parser.MAX_CHARACTERS,
    "depth of a rule's expression": parser.MAX_DEPTH,
    "bytes of a file of tokens, secrets or headers": secret_files.MAX_FILE_BYTES,
    "tokens in a file": secret_files.MAX_TOKENS,
    "bytes of a PEM file": tls.MOST_FILE_BYTES,
    "times its size that a gzip or zstd recording expands": bytestream.MOST_EXPANSION,
    "bytes of a record of a journal": journal_format.MAX_RECORD_BYTES,
    "bytes of one message, JSON line or JSON document": skipped.MAX_DOCUMENT_BYTES,
    "times its bytes that the values of a Parquet row group take": parquet_claims.MOST_EXPANSION,
    "bytes of an answer of a receiver that are read": whole_exchange.ANSWER_BYTES,
    "bytes of an answer that `top` reads": asking.MOST_ANSWER_BYTES,
    "alerts that are kept": places.MOST_ALERTS,
    "recorded tokens of one choice": semconv.MAX_STREAM_TOKENS,
    "choices of one reply": semconv.MAX_CHOICES,
    "characters of a foreign value in the host's log": host_log.VALUE_CHARS,
    "seconds that an exit waits for exports (`OTEL_LLM_EXIT_TIMEOUT`)": int(export_settings.DEFAULT_EXIT_TIMEOUT_S),
    "messages that wait for one receiver": courier.MOST_WAITING,
    "hours that a message is tried": int(courier.GIVE_UP_S // HOUR_S),
    "actions that are being tried at once": lanes.AT_ONCE,
    "of them at one receiver": lanes.AT_ONE_RECEIVER,
    "actions in a row without an answer in time": circuit_breaker.HANGS,
    "bytes of the journal": retention.MOST_BYTES,
    "bytes of closed decision files": DecisionSettings().retain_bytes,
    "shadow firings of a rule and tenant that are written": write_limits.BURST,
    "verdicts of a tenant on the console": write_limits.BURST,
    "tenants and rules with an allowance of their own": write_limits.MOST_ALLOWANCES,
}
ELSEWHERE = {"of them without a first request, of one peer", "tokens that a chunk's own count may claim"}
"""Rows without a number."""


def rows() -> Iterator[tuple[list[str], list[str]]]:
    """Yield each row of a table with the header of its table."""
    header: list[str] = []
    for line in PAGE.read_text(encoding="utf-8").splitlines():
        cells = [cell.strip() for cell in line.strip("|").split("|")] if line.startswith("|") else []
        if not cells:
            header = []
        elif not header:
            header = cells
        elif set(line) - set("|-"):
            yield header, cells


def defaults(limits: Any) -> dict[str, object]:
    """Return the defaults by their keys in a settings file."""
    fields = type(limits).model_fields.items()
    return {str(info.validation_alias or name): getattr(limits, name) for name, info in fields}


def number(cell: str) -> object:
    """Return the number that a cell begins with; None for `none`."""
    if cell == "none":
        return None
    found = re.match(r"\d+", cell)
    assert found is not None, cell
    return int(found[0])


LIMITS = [row for row in rows() if row[0][0].startswith("limit")]


def test_there_are_tables() -> None:
    assert len(LIMITS) > 40
    assert CONSTANTS.keys() <= {cells[0] for _, cells in LIMITS}


@pytest.mark.parametrize(("header", "cells"), LIMITS, ids=[cells[0][:40] for _, cells in LIMITS])
def test_a_limit_is_that_of_the_code(header: list[str], cells: list[str]) -> None:
    named = re.match(r"`limits(?:\.|: \{)(\w+)", cells[0])
    if named is None:
        assert cells[0] in CONSTANTS.keys() | ELSEWHERE
        if cells[0] in CONSTANTS:
            assert number(cells[1]) == CONSTANTS[cells[0]]
        return
    for column, name in enumerate(header):
        if name in ("`collect`", "`relay`"):
            limits = Limits() if name == "`collect`" else RelayLimits()
        elif name == "default":
            limits = RelayLimits() if "relay" in header[0] else Limits()
        else:
            continue
        assert number(cells[column]) == defaults(limits)[named[1]]


def test_every_limit_of_the_settings_is_on_the_page() -> None:
    named = {found for _, cells in LIMITS for found in re.findall(r"`limits(?:\.|: \{)(\w+)", cells[0])}
    assert defaults(Limits()).keys() <= named
    assert defaults(RelayLimits()).keys() - {"header_bytes"} <= named


def test_other_numbers_of_the_page() -> None:
    page = " ".join(PAGE.read_text(encoding="utf-8").split())
    assert f"refused after {bytestream.FREE_BYTES} bytes" in page
    assert f"refused once that is more than {parquet_claims.FREE_BYTES} bytes" in page
    assert f"and {PIECE_BYTES // 1024} KiB of a long answer in memory at most" in page
    assert f"| {PRIVATE:04o} |" in page
    assert page.count(f"| {write_limits.BURST} at once, {write_limits.PER_S} more a second |") == 2
