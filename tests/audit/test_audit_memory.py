"""An audit takes as much memory as what waits in it, not as its input: a journal in a process of bounded memory."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest
from support.patience import WAIT_S

sys.path.insert(0, str(Path(__file__).parents[2] / "benchmarks"))
from audit_speed_parts.journal import Shape, check, write_journal

from otel_llm.formats.io.journal_format import frame, split
from otel_llm.formats.otlp.export_request import read

CODE = """
import json, resource, sys
from otel_llm import audit
from otel_llm.audit.load import Limits
audit.load(sys.argv[1], windows=False, limits=Limits(retained_tokens=0))
before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
found = audit.load(sys.argv[2], limits=Limits(held_bytes=int(sys.argv[3]), retained_tokens=0))
after = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
print(json.dumps([found.summary()["tokens"], len(found.rows), (after - before) * 1024, +found.counts]))
"""
SHAPE = Shape(500, 64)


def audited(small: Path, large: Path, held_bytes: int = 192 * 2**20) -> tuple[int, int, int, dict[str, int]]:
    """Audit a large journal after a small one; return tokens, rows, the bytes that took more, and what was counted."""
    command = [sys.executable, "-c", CODE, str(small), str(large), str(held_bytes)]
    done = subprocess.run(command, check=True, capture_output=True, text=True, timeout=WAIT_S)
    tokens, rows, more, counts = json.loads(done.stdout)
    return tokens, rows, more, counts


@pytest.fixture(scope="module")
def journals(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    folder = tmp_path_factory.mktemp("memory")
    small, large = folder / "small.otlp", folder / "large.otlp"
    assert write_journal(small, 400, SHAPE) == 200_000
    assert write_journal(large, 4000, SHAPE) == 2_000_000
    return small, large


def test_the_journal_is_what_encoders_write(journals: tuple[Path, Path]) -> None:
    records, skipped = split(journals[0].read_bytes())
    assert not skipped
    spans = [
        span
        for record in records[:11]
        for resource_spans in check(record.raw).resource_spans
        for scope_spans in resource_spans.scope_spans
        for span in scope_spans.spans
    ]
    assert len(spans) == 11 * 200
    plain = [one.plain for one in (read(record.raw) for record in records[:11]) if one.plain is not None]
    assert sum(len(found) for found in plain) == 8 * 200  # all but the first, the last and the request span
    assert sum(len(found.times_ns) for found in plain) == 200 * 500


def test_memory_does_not_grow_with_the_journal(journals: tuple[Path, Path]) -> None:
    tokens, rows, more, counts = audited(*journals)
    assert (tokens, rows, counts) == (2_000_000, 4000, {})
    # The token times alone are 16 MB, and as Python's integers they would be 80.
    assert more < 40 * 2**20, f"{more / 2**20:.0f} MiB more"


def test_nor_where_nothing_is_whole_before_the_end(journals: tuple[Path, Path], tmp_path: Path) -> None:
    small, large = journals
    bare = tmp_path / "bare.otlp"
    records, _ = split(large.read_bytes())
    segments = [record for record in records if b"chat llama" not in record.raw]
    bare.write_bytes(b"".join(frame(record.raw, record.receipt_ns or 0) for record in segments))
    tokens, rows, more, counts = audited(small, bare, held_bytes=8 * 2**20)
    assert (tokens, rows, counts) == (2_000_000, 4000, {})
    assert more < 60 * 2**20, f"{more / 2**20:.0f} MiB more"
