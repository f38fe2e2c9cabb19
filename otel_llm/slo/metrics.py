"""The table of metrics: every column of a request, with its unit, its meaning and its formula.

Rows, Arrow and Parquet schemas, pandas types, the charts of the report, the histograms of `/metrics` and the tables of
docs/audit.md are read from here. CONTRIBUTING.md shows how a column is added.
"""

from __future__ import annotations

from dataclasses import dataclass
from operator import attrgetter
from typing import TYPE_CHECKING, Any, Final, Literal, NamedTuple

from otel_llm import semconv
from otel_llm.slo.quantiles import P50, P99

if TYPE_CHECKING:
    from collections.abc import Callable

Kind = Literal["text", "integer", "real", "truth"]
Cell = int | float | bool | None

_NS_PER_S: Final = 1e9


@dataclass(frozen=True, slots=True)
class Formula:
    """A value computed from a verdict: the field `top`, or `top` / `under`; `Judged` applies it to the arrays of many.

    It is null when one of the fields of `Verdict` in `needs` is null, or `under` is not above 0.
    """

    top: Callable[[Any], Any]
    needs: tuple[str, ...]
    under: Callable[[Any], Any] | None = None
    in_ns: bool = False
    """Whether `top` is in ns: the value is shown in seconds."""

    def of(self, verdict: object) -> Any:
        """Return the value of one verdict."""
        if self.under is None:  # `top` is one field
            value = self.top(verdict)
            return value / _NS_PER_S if self.in_ns and value is not None else value
        for name in self.needs:
            if getattr(verdict, name) is None:
                return None
        under = self.under(verdict)
        if under <= 0:
            return None
        value = self.top(verdict) / under
        return value / _NS_PER_S if self.in_ns else value


@dataclass(frozen=True, slots=True)
class Column:
    """A column of `--requests`, with the type of its values and its row in the docs.

    `source`: its formula if it is computed from the times of tokens, `stated` if the field of `Resolved` with its name
    holds it, `made` if rows and the audit's kernel make it of their own inputs. `attribute`: the attribute of a span
    that states it. `label`: its short name for people.
    """

    name: str
    kind: Kind
    unit: str
    help: str
    source: Formula | Literal["stated", "made"] = "stated"
    attribute: str | None = None
    label: str = ""

    @property
    def is_time(self) -> bool:
        """Tell whether its values are lengths of time in seconds."""
        return self.unit in {"s", "s/token"}


def _text(name: str, help_text: str, source: Literal["stated", "made"] = "stated", unit: str = "") -> Column:
    return Column(name, "text", unit, help_text, source)


def _field(name: str, kind: Kind, unit: str, help_text: str, label: str = "") -> Column:
    """Return a column that is a field of the verdict."""
    return Column(name, kind, unit, help_text, Formula(attrgetter(name), (name,)), label=label or name)


def _time(name: str, help_text: str, label: str) -> Column:
    """Return a column that is a field of the verdict in ns, shown in seconds."""
    field = name.removesuffix("_s") + "_ns"
    return Column(name, "real", "s", help_text, Formula(attrgetter(field), (field,), in_ns=True), label=label)


def _stated_time(name: str, attribute: str, help_text: str, label: str = "") -> Column:
    return Column(name, "real", "s", help_text, attribute=attribute, label=label)


_GAPS: Final = "gaps between tokens"
_DEADLINES: Final = "token deadlines and how many passed (Etalon, section 4.1)"
_STATED_TOTAL: Final = "of every kind; the total that the reply states, if the recorder counted chunks or estimated"
_WHY_STOPPED: Final = (
    "why the model stopped, in OpenAI's words (`stop`, `length`, `content_filter`, `tool_calls`, `error`); null if not "
    "stated. A reply cut by `length` or `content_filter` is `completed`"
)
_QUEUE: Final = "time in the queue of the engine, or of the relay, if it says it"
_PREFILL: Final = "time that the engine took for the prompt, if it says it"
_RELAY_LAG: Final = (
    "how long the reply waited in the relay since its event loop was held up, at most; null if it never was by 5 ms"
)
_IDLE: Final = "user idle latency (Wang et al., eq. 5 and 9): how long the reader had nothing to read"
_TENANT: Final = "of the sender, as the journal keeps it; else `default` ([tenants](collector-settings.md#tenants))"

COLUMNS: Final = (
    _text("trace_id", "of the request span", "made", "hex"),
    _text("span_id", "of the request span", "made", "hex"),
    Column("choice", "integer", "", "which of a request's streams (n > 1); null for spans of others"),
    _text("slo_class", "the class that judged it", "made"),
    _text("model", "the model asked for, else the one that answered"),
    _text("instance", "the replica that served it"),
    _text("measured_at", "`client`, `relay` or `server`: whose clock and whose view"),
    _text("outcome", "`completed`, `cancelled`, `abandoned`, `disconnected`, `error`, `lost`"),
    _text("finish_reason", _WHY_STOPPED),
    Column("start_unix_nano", "integer", "unix ns", "the commit: when the user began to wait", "made"),
    Column("input_tokens", "integer", "tokens", "of the prompt, if the recording says it", label="prompt tokens"),
    _field("tokens", "integer", "tokens", _STATED_TOTAL),
    _field("tokens_read", "integer", "tokens", "of the kinds that the class's user reads"),
    Column(
        "tokens_recorded",
        "integer",
        "tokens",
        "of every kind, as the recorder counted them; null without times",
        "made",
    ),
    _text("token_basis", "`exact`, `chunk` or `estimated`: what a token of `tokens` is"),
    Column("coverage", "real", "0..1", "tokens received of those sent; below 1 the request is not judged"),
    _time("ttft_s", "first token of any kind", "TTFT"),
    _time("ttfo_s", "first token that is read", "first text"),
    _time("e2e_s", "end of the stream", "E2E"),
    _stated_time("queue_s", semconv.GEN_AI_LATENCY_QUEUE, _QUEUE, "queue"),
    _stated_time("prefill_s", semconv.GEN_AI_LATENCY_PREFILL, _PREFILL, "prefill"),
    _stated_time("relay_lag_s", semconv.RELAY_LAG, _RELAY_LAG),
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
        label="TPOT",
    ),
    _time("tbt_p50_s", _GAPS, "TBT p50"),
    _time("tbt_p99_s", _GAPS, "TBT p99"),
    _time("tbt_max_s", _GAPS, "longest TBT"),
    _time("idle_s", _IDLE, "idle"),
    _time("idle_decode_s", "the same from the first token read on", "idle while reading"),
    _field("stalls", "integer", "", "how often the reader ran dry"),
    _field("deadlines", "integer", "", _DEADLINES),
    _field("deadline_misses", "integer", "", _DEADLINES),
    Column(
        "fluidity_index",
        "real",
        "0..1",
        "share of deadlines met, with resets (Etalon, section 4.1)",
        Formula(
            lambda one: one.deadlines - one.deadline_misses, ("deadlines", "deadline_misses"), attrgetter("deadlines")
        ),
        label="fluidity",
    ),
    Column(
        "fluidity_line",
        "real",
        "0..1",
        "the same without resets: no delay can raise it",
        Formula(attrgetter("tokens_read"), ("line_misses",), lambda one: one.tokens_read + one.line_misses),
    ),
    _field("met", "truth", "true, false, null", "the class's deadline policy; null is cannot say"),
    _field("benefit", "real", "tokens", "`tokens_read` - alpha f(idle) - abort penalty (Wang et al., eq. 10)"),
    _text("tenant", _TENANT, unit="text"),
)
"""The columns of `--requests`, in the order in which they are written."""

BY_NAME: Final = {one.name: one for one in COLUMNS}
REQUESTS: Final[dict[str, Kind]] = {one.name: one.kind for one in COLUMNS}
"""The columns of `--requests` in order, with their types."""
COMPUTED: Final = {one.name: one.source for one in COLUMNS if isinstance(one.source, Formula)}
"""The columns that are computed from a request's times, with their formulas."""
STATED: Final = tuple(one.name for one in COLUMNS if one.source == "stated")
"""The columns that are fields of `Resolved`."""
IN_ATTRIBUTES: Final = {one.name: (one.attribute, one.kind) for one in COLUMNS if one.attribute is not None}
"""The columns that an attribute of a span states: its name, and the type of its value."""


class Chart(NamedTuple):
    """The chart of a column's distribution in the report: its title, a remark, and its axis (else the label)."""

    column: str
    title: str
    note: str
    axis: str = ""


CHARTS: Final = (
    Chart("ttfo_s", "Time to the first text that is read", "Further left is better."),
    Chart("ttft_s", "Time to first token of any kind", "Further left is better."),
    Chart("queue_s", "Time in the queue of the engine or relay", "Of requests that say it."),
    Chart("prefill_s", "Time of the prefill", "Of requests that say it."),
    Chart("idle_s", "Idle time", "The height at the left border: requests whose reader never waited."),
    Chart("tbt_p99_s", "Gaps: 99th percentile of each request", "One value a request."),
    Chart("tbt_max_s", "Gaps: the longest of each request", "One value a request."),
    Chart("tbt_p50_s", "Gaps: median of each request", "One value a request."),
    Chart("tpot_s", "Time of a further token (TPOT)", "The mean gap of each request."),
    Chart("e2e_s", "Whole reply (E2E)", "Of all requests whose end is known, failed ones included."),
    Chart(
        "fluidity_index",
        "Fluidity-index",
        "Further right is better; the step at 1: requests that missed no token deadline.",
        "fluidity-index",
    ),
)
"""The charts of distributions in order. TBT has one chart a figure of each request: rows have no single gaps."""

TTFT_BUCKETS_S: Final = (0.025, 0.05, 0.1, 0.2, 0.3, 0.5, 0.75, 1.0, 1.5, 2.0, 3.0, 5.0, 7.5, 10.0, 20.0, 40.0)
TBT_BUCKETS_S: Final = (
    0.002, 0.004, 0.006, 0.008, 0.01, 0.015, 0.02, 0.025, 0.03, 0.04,
    0.05, 0.075, 0.1, 0.15, 0.2, 0.3, 0.5, 1.0, 2.0, 5.0,
)  # fmt: skip
"""Fine in the range of decoding on today's GPUs (2-10 ms), coarse for stalls."""
IDLE_BUCKETS_S: Final = (0.0, 0.1, 0.2, 0.5, 1.0, 2.0, 3.0, 5.0, 10.0, 20.0, 60.0)
FLUIDITY_BUCKETS: Final = (0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.85, 0.9, 0.95, 0.99, 1.0)
"""A rule about a target of the fluidity-index needs a bucket that ends there."""


class Histogram(NamedTuple):
    """A histogram of `/metrics`: its name, help, UCUM unit, the upper bounds of its buckets, and its column.

    It has one value of each request, or every gap between tokens if `column` is None.
    """

    name: str
    help: str
    unit: str
    buckets: tuple[float, ...]
    column: str | None


HISTOGRAMS: Final = (
    Histogram("otel_llm_ttft_seconds", "Time to the first token of any kind.", "s", TTFT_BUCKETS_S, "ttft_s"),
    Histogram(
        "otel_llm_time_to_first_visible_token_seconds",
        "Time to the first token that the class's user reads.",
        "s",
        TTFT_BUCKETS_S,
        "ttfo_s",
    ),
    Histogram("otel_llm_tbt_seconds", "Time between tokens.", "s", TBT_BUCKETS_S, None),
    Histogram("otel_llm_idle_seconds", "User idle latency of a request.", "s", IDLE_BUCKETS_S, "idle_s"),
    Histogram(
        "otel_llm_fluidity_index", "Share of a request's token deadlines met.", "1", FLUIDITY_BUCKETS, "fluidity_index"
    ),
)
"""The histograms of ended requests in `/metrics`, in order."""


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
        "goodput_tok_s", "tokens of the requests that ended in it and met their deadlines", attrgetter("goodput_tokens")
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
