"""A benchmark's failures in the audit: in attainment and the aborted share, and in no figure that needs their end."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from support.formats.bench_files import NS, Chunk, Requested, vllm_run

from otel_llm.audit import load

MS = 1_000_000


def test_failures_without_an_end_count_against_the_server(tmp_path: Path) -> None:
    requested = [Requested(number * NS, (Chunk(200 * MS), Chunk(260 * MS))) for number in range(4)]
    run = vllm_run(requested, failed=1)
    run["errors"][3], run["latencies"][3], run["output_lens"][3] = "Traceback ...", 0.0, 0
    path = tmp_path / "result.json"
    path.write_text(json.dumps(run))
    audit = load(path)
    figures = audit.summary()["classes"]["chat"]["client"]
    assert (figures["requests"], figures["attainment"], figures["aborted_share"]) == (4, 0.75, 0.25)
    assert (figures["incomplete"], figures["undetermined"]) == (0, 0)
    assert audit.requests["met"].tolist() == [True, True, True, False]
    assert audit.requests["idle_s"].isna().tolist() == [False, False, False, True]
    windows = audit.windows
    assert windows[["met_true", "met_false", "met_null", "aborted"]].sum().tolist() == [3, 1, 0, 1]
    assert audit.counts["anomaly.clock_unanchored"] == 4
    assert audit.counts["anomaly.end_unknown"] == 1


@pytest.mark.parametrize("packed", [False, True])
def test_files_of_several_tools_are_audited_together(tmp_path: Path, packed: bool) -> None:
    import gzip

    fixtures = Path(__file__).parents[1] / "formats" / "recordings" / "bench" / "fixtures"
    paths: list[Path] = []
    for name in ("vllm_chat.json", "aiperf/profile_export_raw.jsonl", "guidellm.json"):
        data = (fixtures / name).read_bytes()
        paths.append(tmp_path / f"{len(paths)}.bin")
        paths[-1].write_bytes(gzip.compress(data) if packed else data)
    requests = load(*paths).requests
    assert requests["model"].value_counts().to_dict() == {"tiny": 8, "m": 6}
    assert requests["tokens"].sum() == 6 * 24 + 56
    # The same file under two names: the same requests, once.
    twice = load(paths[0], fixtures / "vllm_chat.json")
    assert len(twice.requests) == 6
