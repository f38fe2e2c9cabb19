"""A real AIPerf run against the scripted server: its records and raw records are read, and its figures are ours."""

from __future__ import annotations

from pathlib import Path

from support.formats.bench_figures import check_aiperf
from support.formats.bench_read import read
from support.integration.aiperf_run import COUNTED, FAILING, REQUESTS, kind_of, profile


def test_aiperfs_figures_are_ours(tmp_path: Path) -> None:
    folder = profile(tmp_path)
    paths = [folder / "profile_export.jsonl", folder / "profile_export_raw.jsonl"]
    records, raw = (read(path.read_bytes(), path)[0] for path in paths)
    check_aiperf(folder, records, raw)
    kinds = [kind_of(number) for number in range(REQUESTS)]
    by_start = sorted(raw, key=lambda one: one.resolved.commit_ns or 0)
    assert [one.resolved.outcome == "error" for one in by_start] == [kind == FAILING for kind in kinds]
    tokens = [one.tokens for one in by_start]
    assert tokens == [0 if kind == FAILING else 16 if kind == COUNTED else 8 for kind in kinds]
    assert {one.resolved.model for one in [*records, *raw]} == {"m"}
