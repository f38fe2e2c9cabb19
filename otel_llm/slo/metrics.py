"""The table of metrics: every column of a request, with its unit, its meaning and its formula.

Rows, Arrow and Parquet schemas, pandas types and the tables of docs/audit.md are read from here. CONTRIBUTING.md shows
how a column is added.
"""

from __future__ import annotations

from dataclasses import dataclass
from operator import attrgetter
from typing import TYPE_CHECKING, Any, Final, Literal

from otel_llm import semconv
from otel_llm.slo.ranks import P50, P99

if TYPE_CHECKING:
    from collections.abc import Callable

Kind = Literal["text", "integer", "real", "truth"]
Cell = int | float | bool | None

_NS_PER_S: Final = 1e9


@dataclass(frozen=True, slots=True)
class Formula:
    """A value computed from a verdict, `top` or `top` / `under`; `Judged` applies it to the arrays of many verdicts.

    It is null when one of the fields of `Verdict` in `needs` is null, or `under` is not above 0.
    """

    top: Callable[[Any], Any]
    needs: tuple[str, ...]
    under: Callable[[Any], Any] | None = None
    in_ns: bool = False
    """Whether `top` is in ns: the value is shown in seconds."""

    def of(self, verdict: object) -> Any:
        """Return the value of one verdict."""
        for name in self.needs:
            if getattr(verdict, name) is None:
                return None
        value = self.top(verdict)
        if self.under is not None:
            under = self.under(verdict)
            if under <= 0:
                return None
            value = value / under
        return value / _NS_PER_S if self.in_ns else value


@dataclass(frozen=True, slots=True)
class Column:
    """A column of `--requests`, with the type of its values and its row in the docs.

    `source`: its formula if it is computed from the times of tokens, `stated` if the field of `Resolved` with its name
    holds it, `made` if rows and the audit's kernel make it of their own inputs. `attribute`: the attribute of a span
    that states it.
    """

    name: str
    kind: Kind
    unit: str
    help: str
    source: Formula | Literal["stated", "made"] = "stated"
    attribute: str | None = None


def _field(name: str) -> Formula:
    return Formula(attrgetter(name), (name,))


def _time(name: str) -> Formula:
    return Formula(attrgetter(name), (name,), in_ns=True)


COLUMNS: Final = (
    Column("trace_id", "text", "hex", "of the request span", "made"),
    Column("span_id", "text", "hex", "of the request span", "made"),
    Column("choice", "integer", "", "which of a request's streams (n > 1); null for spans of others"),
    Column("slo_class", "text", "", "the class that judged it", "made"),
    Column("model", "text", "", "the model asked for, else the one that answered"),
    Column("instance", "text", "", "the replica that served it"),
    Column("measured_at", "text", "", "`client`, `relay` or `server`: whose clock and whose view"),
    Column("outcome", "text", "", "`completed`, `cancelled`, `abandoned`, `disconnected`, `error`, `lost`"),
    Column(
        "finish_reason",
        "text",
        "",
        "why the model stopped, in OpenAI's words (`stop`, `length`, `content_filter`, `tool_calls`, `error`); null if "
        "not stated. A reply cut by `length` or `content_filter` is `completed`",
    ),
    Column("start_unix_nano", "integer", "unix ns", "the commit: when the user began to wait", "made"),
    Column("input_tokens", "integer", "tokens", "of the prompt, if the recording says it"),
    Column(
        "tokens",
        "integer",
        "tokens",
        "of every kind; the total that the reply states, if the recorder counted chunks or estimated",
        _field("tokens"),
    ),
    Column("tokens_read", "integer", "tokens", "of the kinds that the class's user reads", _field("tokens_read")),
    Column(
        "tokens_recorded",
        "integer",
        "tokens",
        "of every kind, as the recorder counted them; null without times",
        "made",
    ),
    Column("token_basis", "text", "", "`exact`, `chunk` or `estimated`: what a token of `tokens` is"),
    Column("coverage", "real", "0..1", "tokens received of those sent; below 1 the request is not judged"),
    Column("ttft_s", "real", "s", "first token of any kind", _time("ttft_ns")),
    Column("ttfo_s", "real", "s", "first token that is read", _time("ttfo_ns")),
    Column("e2e_s", "real", "s", "end of the stream", _time("e2e_ns")),
    Column(
        "queue_s",
        "real",
        "s",
        "time in the queue of the engine, or of the relay, if it says it",
        attribute=semconv.GEN_AI_LATENCY_QUEUE,
    ),
    Column(
        "prefill_s",
        "real",
        "s",
        "time that the engine took for the prompt, if it says it",
        attribute=semconv.GEN_AI_LATENCY_PREFILL,
    ),
    Column(
        "relay_lag_s",
        "real",
        "s",
        "how long the reply waited in the relay since its event loop was held up, at most; null if it never was by 5 "
        "ms",
        attribute=semconv.RELAY_LAG,
    ),
    Column(
        "normalized_latency_s",
        "real",
        "s/token",
        "`e2e_s` / `tokens`",
        Formula(attrgetter("e2e_ns"), ("e2e_ns",), attrgetter("tokens"), in_ns=True),
    ),
    Column(
        "tpot_s",
        "real",
        "s/token",
        "mean time of a further token",
        Formula(attrgetter("span_ns"), ("span_ns",), lambda one: one.tokens - 1, in_ns=True),
    ),
    Column("tbt_p50_s", "real", "s", "gaps between tokens", _time("tbt_p50_ns")),
    Column("tbt_p99_s", "real", "s", "gaps between tokens", _time("tbt_p99_ns")),
    Column("tbt_max_s", "real", "s", "gaps between tokens", _time("tbt_max_ns")),
    Column(
        "idle_s",
        "real",
        "s",
        "user idle latency (Wang et al., eq. 5 and 9): how long the reader had nothing to read",
        _time("idle_ns"),
    ),
    Column("idle_decode_s", "real", "s", "the same from the first token read on", _time("idle_decode_ns")),
    Column("stalls", "integer", "", "how often the reader ran dry", _field("stalls")),
    Column(
        "deadlines",
        "integer",
        "",
        "token deadlines and how many passed (Etalon, section 4.1)",
        _field("deadlines"),
    ),
    Column(
        "deadline_misses",
        "integer",
        "",
        "token deadlines and how many passed (Etalon, section 4.1)",
        _field("deadline_misses"),
    ),
    Column(
        "fluidity_index",
        "real",
        "0..1",
        "share of deadlines met, with resets (Etalon, section 4.1)",
        Formula(
            lambda one: one.deadlines - one.deadline_misses,
            ("deadlines", "deadline_misses"),
            attrgetter("deadlines"),
        ),
    ),
    Column(
        "fluidity_line",
        "real",
        "0..1",
        "the same without resets: no delay can raise it",
        Formula(attrgetter("tokens_read"), ("line_misses",), lambda one: one.tokens_read + one.line_misses),
    ),
    Column("met", "truth", "true, false, null", "the class's deadline policy; null is cannot say", _field("met")),
    Column(
        "benefit",
        "real",
        "tokens",
        "`tokens_read` - alpha f(idle) - abort penalty (Wang et al., eq. 10)",
        _field("benefit"),
    ),
    Column(
        "tenant",
        "text",
        "text",
        "of the sender, as the journal keeps it; else `default` ([tenants](collector-settings.md#tenants))",
    ),
)
"""The columns of `--requests`, in the order in which they are written."""

REQUESTS: Final[dict[str, Kind]] = {one.name: one.kind for one in COLUMNS}
"""The columns of `--requests` in order, with their types."""
COMPUTED: Final = {one.name: one.source for one in COLUMNS if isinstance(one.source, Formula)}
"""The columns that are computed from a request's times, with their formulas."""
STATED: Final = tuple(one.name for one in COLUMNS if one.source == "stated")
"""The columns that are fields of `Resolved`."""
IN_ATTRIBUTES: Final = {one.name: (one.attribute, one.kind) for one in COLUMNS if one.attribute is not None}
"""The columns that an attribute of a span states: its name, and the type of its value."""


@dataclass(frozen=True, slots=True)
class WindowColumn:
    """A column of `--windows`.

    `value`: the function of `WindowTotals` that gives it, None for the window's time and group; `per_second`: it is
    divided by the window's length.
    """

    name: str
    kind: Kind
    unit: str
    help: str
    value: Callable[[Any], Any] | None = None
    per_second: bool = False
    nullable: bool = False


def _count(name: str, help_text: str) -> WindowColumn:
    unit = "tokens" if name.startswith("tokens") else "requests"
    return WindowColumn(name, "integer", unit, help_text, attrgetter(name))


def _rate(name: str, help_text: str, amount: Callable[[Any], float]) -> WindowColumn:
    return WindowColumn(name, "real", "tokens/s", help_text, amount, per_second=True)


def _percentile(name: str, unit: str, percentile: Callable[[Any], float | None]) -> WindowColumn:
    words = "of the requests that ended in it, within 1 %"
    return WindowColumn(name, "real", unit, words, percentile, nullable=True)


WINDOW_COLUMNS: Final = (
    WindowColumn("window_start_unix_nano", "integer", "unix ns", "start"),
    WindowColumn("window_s", "real", "s", "length"),
    WindowColumn("slo_class", "text", "", "the group"),
    WindowColumn("model", "text", "", "the group", nullable=True),
    WindowColumn("instance", "text", "", "the group", nullable=True),
    WindowColumn("measured_at", "text", "", "the group"),
    _count("requests_started", "committed, ended in it"),
    _count("requests_ended", "committed, ended in it"),
    _count("met_true", "of those that ended in it"),
    _count("met_false", "of those that ended in it"),
    _count("met_null", "of those that ended in it"),
    _count("incomplete", "ended in it and not judged: tokens missing (in `met_null` too)"),
    _count("aborted", "ended in it by the server's side: `error`, `disconnected`"),
    _count("tokens_read", "arrived in it"),
    _rate("throughput_tok_s", "`tokens_read` / `window_s`", attrgetter("tokens_read")),
    _rate(
        "goodput_tok_s",
        "tokens of the requests that ended in it and met their deadlines",
        attrgetter("goodput_tokens"),
    ),
    _rate(
        "smooth_goodput_tok_s",
        "tokens less the penalty of the waiting in it (Wang et al., eq. 11)",
        attrgetter("benefit.value"),
    ),
    WindowColumn("idle_s_sum", "real", "s", "waiting in it, over all readers", lambda one: one.idle_ns / _NS_PER_S),
    _percentile("fluidity_p50", "0..1", lambda one: one.fluidity.quantile(P50)),
    _percentile("idle_p50_s", "s", lambda one: one.idle.quantile(P50)),
    _percentile("idle_p99_s", "s", lambda one: one.idle.quantile(P99)),
)
"""The columns of `--windows`, in the order in which they are written."""

WINDOWS: Final[dict[str, Kind]] = {one.name: one.kind for one in WINDOW_COLUMNS}
"""The columns of `--windows` in order, with their types."""

LATENCIES: Final = ("ttft", "itl", "tpot", "e2e")
"""The latencies of the summary: first token, gaps between tokens, time of a further token, whole reply."""
STATISTICS: Final = ("mean", "p50", "p90", "p99")
"""The statistics of each latency."""
LATENCY_FIGURES: Final = tuple(f"{one}_{statistic}_s" for one in LATENCIES for statistic in STATISTICS)

CLASS_COLUMNS: Final = (
    "slo_class",
    "measured_at",
    "requests",
    "tokens",
    "incomplete",
    "undetermined",
    "aborted_share",
    "attainment",
    "throughput_tok_s",
    "throughput_req_s",
    "goodput_tok_s",
    "goodput_req_s",
    "smooth_goodput_tok_s",
    "fluidity_p50",
    "fluidity_ok_share",
    "idle_p50_s",
    "idle_p99_s",
    "ttfo_p50_s",
    "ttfo_p99_s",
    *LATENCY_FIGURES,
    "fluid_token_rate",
)
"""A class at one place of measurement in the summary, with its figures."""
_COUNTED: Final = frozenset({"requests", "tokens", "incomplete", "undetermined"})
_WORDS: Final = frozenset({"slo_class", "measured_at"})
CLASSES: Final[dict[str, Kind]] = {
    name: "text" if name in _WORDS else "integer" if name in _COUNTED else "real" for name in CLASS_COLUMNS
}
"""The same with their types."""
