"""The report once more from saved tables: the same bytes if nothing is missing, the same numbers in every format."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from click.testing import CliRunner, Result
from support.audit.report_tables import T0_NS, requests_of, windows_of
from support.formats.damaged import CHANGES, damaged
from support.recordings import vector_classes, vector_messages, write_format
from support.vectors import FOLDER

import otel_llm.audit
from otel_llm.audit import Audit, load_streams
from otel_llm.audit.metadata import KEY
from otel_llm.audit.report.report import build
from otel_llm.audit.report.saved import TableError, load_saved, read_table
from otel_llm.cli.main import main
from otel_llm.slo.metrics import REQUESTS, WINDOWS

ROWS = FOLDER / "rows.jsonl"
FORMATS = (".parquet", ".csv", ".jsonl")


@pytest.fixture(scope="module")
def audit() -> Audit:
    return otel_llm.audit.load(ROWS)


@pytest.fixture(scope="module")
def saved(audit: Audit, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with everything that the audit of `rows.jsonl` can save."""
    folder = tmp_path_factory.mktemp("saved")
    for file_format in FORMATS:
        audit.write_requests(folder / f"r{file_format}")
        audit.write_windows(folder / f"w{file_format}")
    (folder / "summary.json").write_text(json.dumps(audit.summary()), encoding="utf-8")
    pq.write_table(pa.Table.from_batches(load_streams(ROWS)), folder / "s.parquet", row_group_size=3)
    audit.write_html(folder / "audit.html")
    return folder


def run(folder: Path, *arguments: str) -> Result:
    paths = [str(folder / one) if one.startswith(("r.", "w.", "s.", "summary.", "bad.")) else one for one in arguments]
    return CliRunner().invoke(main, ["report", *paths], catch_exceptions=False)


def test_with_the_streams_beside_them_the_tables_give_the_same_page_to_the_byte(saved: Path, tmp_path: Path) -> None:
    out = tmp_path / "again.html"
    tables = ("--requests", "r.parquet", "--windows", "w.parquet", "--streams", "s.parquet")
    result = run(saved, *tables, "--html", str(out))

    assert result.exit_code == 0, result.output
    assert "18 requests" in result.output
    assert out.read_bytes() == (saved / "audit.html").read_bytes()


@pytest.mark.parametrize("file_format", FORMATS)
def test_every_format_gives_the_same_figures_and_says_why_deliveries_are_missing(
    audit: Audit, saved: Path, file_format: str
) -> None:
    model = load_saved(saved / f"r{file_format}", saved / f"w{file_format}", summary=saved / "summary.json")

    pd.testing.assert_frame_equal(model.requests, audit.requests)
    pd.testing.assert_frame_equal(model.windows, audit.windows)
    assert model.summary == audit.summary()
    page = build(model)
    assert "The deliveries are not drawn" in page
    assert "longest idle times" in page
    # All but the deliveries is the same figure for figure.
    found, wanted = figures(page), figures((saved / "audit.html").read_text("utf-8"))
    assert found == {name: one for name, one in wanted.items() if not name.startswith("delivery")}
    assert "nothing was skipped" not in page or file_format == ".parquet"


def figures(page: str) -> dict[str, Any]:
    data = page.split("<script type='application/json' id='figures'>")[1].split("</script>")[0]
    found: dict[str, Any] = json.loads(data)
    return found


def test_without_a_summary_rows_say_all_but_the_fluid_token_rate_and_single_gaps(tmp_path: Path) -> None:
    # Vectors without lost ends, whose end no row knows.
    source = write_format(tmp_path, "journal.otlp", vector_messages())
    audit = otel_llm.audit.load(source, slo=vector_classes(), window="1s")
    audit.write_requests(tmp_path / "r.csv")
    audit.write_windows(tmp_path / "w.csv")
    reported = load_saved(tmp_path / "r.csv", tmp_path / "w.csv", slo=vector_classes())

    assert reported.window_ns == 10**9
    assert (reported.skipped, reported.counts) == (None, None)
    wanted = audit.summary()
    assert reported.summary["requests"] == wanted["requests"]
    for name, places in wanted["classes"].items():
        for place, one in places.items():
            found = reported.summary["classes"][name][place]
            rates = {key for key in one if key.endswith(("_tok_s", "_req_s"))}
            rates |= {"fluid_token_rate", "itl_p50_s", "itl_p90_s", "itl_p99_s"}
            assert {key: value for key, value in found.items() if key not in rates} == {
                key: value for key, value in one.items() if key not in rates
            }
            assert found["fluid_token_rate"] is None
    assert "what was skipped is not in these tables" in build(reported)


def test_nulls_types_and_hostile_text_survive_every_format(tmp_path: Path) -> None:
    odd = 'a,"b"\nc; NA null true 1 模型 <b>'
    audit = otel_llm.audit.load(ROWS)
    rows = requests_of(
        [{"model": odd, "ttft_s": 0.1 + 0.2, "met": False, "tokens": 2**60}, {"model": "NA", "instance": "null"}]
    )
    for file_format in FORMATS:
        path = tmp_path / f"r{file_format}"
        _write(path, rows)
        found, _ = read_table(path, REQUESTS, ())
        pd.testing.assert_frame_equal(found, rows)
    assert audit.requests.dtypes.to_dict() == rows.dtypes.to_dict()


def _write(path: Path, frame: pd.DataFrame) -> None:
    """Write a table as pandas would."""
    if path.suffix == ".parquet":
        frame.to_parquet(path)
    elif path.suffix == ".csv":
        truths = frame["met"].map({True: "true", False: "false"}) if "met" in frame else None
        (frame if truths is None else frame.assign(met=truths)).to_csv(path, index=False)
    else:
        frame.to_json(path, orient="records", lines=True, force_ascii=False, double_precision=15)


REQUEST = {"trace_id": "a" * 32, "span_id": "b" * 16, "outcome": "completed", "start_unix_nano": T0_NS, "coverage": 1.0}
WINDOW = {"window_start_unix_nano": T0_NS}


@pytest.fixture
def tables(tmp_path: Path) -> Path:
    """A folder with a small good table of each kind."""
    requests_of([REQUEST]).to_parquet(tmp_path / "r.parquet")
    windows_of([WINDOW]).to_parquet(tmp_path / "w.parquet")
    return tmp_path


def refused(folder: Path, *arguments: str) -> str:
    result = run(folder, *arguments, "--html", str(folder / "out.html"))
    assert result.exit_code == 2, result.output
    assert not (folder / "out.html").exists()
    return " ".join(result.output.replace("│", " ").split())


def test_small_tables_of_anybody_are_taken(tables: Path) -> None:
    result = run(tables, "--requests", "r.parquet", "--windows", "w.parquet", "--html", str(tables / "o.html"))
    assert result.exit_code == 0, result.output
    assert "0 of 1 request could be judged" in (tables / "o.html").read_text("utf-8")


@pytest.mark.parametrize("file_format", FORMATS)
def test_a_table_that_lacks_columns_is_refused_with_their_names(tables: Path, file_format: str) -> None:
    _write(tables / f"bad{file_format}", requests_of([REQUEST]).drop(columns=["idle_s", "met"]))
    reported = refused(tables, "--requests", f"bad{file_format}", "--windows", "w.parquet")
    assert f"bad{file_format}: lacks the columns idle_s, met; write the table again" in reported


@pytest.mark.parametrize(
    ("content", "words"),
    [
        (b"PAR1 and then nothing of it", "pass a table that `otel-llm audit` wrote"),
        (b"<html>\n", "none of the columns trace_id, span_id, choice ..."),
        (b"{not json\n", "line 1 is not JSON"),
        (b'{"traces": 1}\n', "none of the columns"),
        (b"\xff\xfe\x00", "none of the columns"),
    ],
)
def test_what_is_no_table_is_refused(tables: Path, content: bytes, words: str) -> None:
    (tables / "bad.csv").write_bytes(content)
    assert words in refused(tables, "--requests", "bad.csv", "--windows", "w.parquet")


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"slo_class": "gold"}, "no SLO class 'gold' in the file of classes; pass the one that judged it by --slo"),
        ({"slo_class": None}, "row 1 has no slo_class"),
        ({"idle_s": float("inf")}, "idle_s of row 1 is not a finite number"),
    ],
)
def test_rows_that_cannot_be_are_refused(tables: Path, change: dict[str, Any], words: str) -> None:
    requests_of([REQUEST | change]).to_parquet(tables / "bad.parquet")
    assert words in refused(tables, "--requests", "bad.parquet", "--windows", "w.parquet")


def test_words_where_numbers_belong_are_refused(tables: Path) -> None:
    rows = requests_of([REQUEST]).astype({"tokens": "string"})
    rows["tokens"] = "many"
    for file_format in FORMATS:
        _write(tables / f"bad{file_format}", rows)
        assert "pass a table that `otel-llm audit` wrote" in refused(
            tables, "--requests", f"bad{file_format}", "--windows", "w.parquet"
        )


def test_windows_of_two_lengths_are_refused(tables: Path) -> None:
    windows_of([WINDOW, WINDOW | {"window_s": 60.0}]).to_parquet(tables / "bad.parquet")
    assert "windows of 2 lengths" in refused(tables, "--requests", "r.parquet", "--windows", "bad.parquet")


def test_a_summary_or_streams_that_are_none_are_refused(tables: Path) -> None:
    given = ("--requests", "r.parquet", "--windows", "w.parquet")
    (tables / "bad.json").write_text("[]")
    assert "lacks classes, requests" in refused(tables, *given, "--summary", "bad.json")
    (tables / "bad.json").write_text("x")
    assert "not JSON" in refused(tables, *given, "--summary", "bad.json")
    assert "bad.json" in refused(tables, *given, "--streams", "bad.json")


def test_broken_metadata_is_refused_and_an_input_is_not_written_over(tables: Path) -> None:
    table = pq.read_table(tables / "r.parquet").replace_schema_metadata({KEY: b'{"summary": 1}'})
    pq.write_table(table, tables / "bad.parquet")
    assert "its metadata 'otel_llm.audit' is not as" in refused(
        tables, "--requests", "bad.parquet", "--windows", "w.parquet"
    )
    (tables / "r.parquet").rename(tables / "r.html")
    result = run(
        tables, "--requests", str(tables / "r.html"), "--windows", "w.parquet", "--html", str(tables / "r.html")
    )
    assert result.exit_code == 2
    assert "would be overwritten" in result.output


def test_an_empty_table_is_a_page_that_says_so(tables: Path) -> None:
    (tables / "r.jsonl").write_bytes(b"")
    windows_of([]).to_parquet(tables / "w.parquet")
    page = build(load_saved(tables / "r.jsonl", tables / "w.parquet"))
    assert "No request was found." in page
    assert len(WINDOWS) == 21


@pytest.mark.parametrize(("requests", "windows"), [("bad.jsonl", "w.parquet"), ("r.parquet", "bad.jsonl")])
def test_an_empty_file_beside_a_table_with_rows_is_refused(tables: Path, requests: str, windows: str) -> None:
    (tables / "bad.jsonl").write_bytes(b"")
    known = requests_of([REQUEST | {"benefit": 1.0}])
    known.to_parquet(tables / "r.parquet")
    reported = refused(tables, "--requests", requests, "--windows", windows)
    assert "bad.jsonl: empty, while the other table has rows; write both with one `otel-llm audit`" in reported


def test_tables_of_no_rows_and_of_requests_that_no_window_holds_stay_legal(tables: Path) -> None:
    (tables / "w.jsonl").write_bytes(b"")
    requests_of([REQUEST | {"benefit": None}]).to_parquet(tables / "r.parquet")
    assert len(load_saved(tables / "r.parquet", tables / "w.jsonl").requests) == 1
    requests_of([]).to_parquet(tables / "r.parquet")
    assert load_saved(tables / "r.parquet", tables / "w.parquet").requests.empty


def test_a_recording_of_other_requests_is_refused(saved: Path, tmp_path: Path) -> None:
    table = pq.read_table(saved / "s.parquet")
    others = pa.array([b"\7" * 16] * len(table), table.schema.field("trace_id").type)
    at = table.schema.get_field_index("trace_id")
    other = tmp_path / "other.parquet"
    pq.write_table(table.set_column(at, table.schema.field(at), others), other)
    tables = ("--requests", "r.parquet", "--windows", "w.parquet")
    out = tmp_path / "out.html"
    result = run(saved, *tables, "--streams", str(other), "--html", str(out))
    reported = " ".join(result.output.replace("│", " ").split())
    assert (result.exit_code, out.exists()) == (2, False)
    assert "other.parquet: holds none of the" in reported
    assert "pass the recording that was audited" in reported


def test_an_error_says_which_file(tmp_path: Path) -> None:
    (tmp_path / "bad").write_bytes(b"x")
    with pytest.raises(TableError, match="bad"):
        read_table(tmp_path / "bad", WINDOWS, ())


@pytest.mark.parametrize("change", CHANGES)
def test_a_damaged_table_of_parquet_is_named(tmp_path: Path, change: str) -> None:
    path = tmp_path / "x.parquet"
    pq.write_table(pa.table({"word": ["x", "y"], "share": [0.5, None]}), path)
    refused = 0
    for data in damaged(path.read_bytes(), change):
        path.write_bytes(data)
        try:
            read_table(path, {"word": "text", "share": "real"}, ["word"])
        except TableError as error:
            assert str(path) in str(error)  # noqa: PT017 - raising is optional here
            refused += 1
    assert 0 < refused < len(data)
