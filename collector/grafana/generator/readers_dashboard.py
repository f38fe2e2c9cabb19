"""The dashboard *Readers*: who waits, for how long, and what is promised."""

from __future__ import annotations

from typing import Final

from generator.layout import Dashboard, Row, Variable
from generator.metric_table import series
from generator.panels import BAD, WARN, Panel, Query, median_and_p99
from generator.promql import PROMISE_LABELS, rates, readers, share, total

STARVING: Final = readers("otel_llm_streams_starving")
FLYING: Final = readers("otel_llm_streams_in_flight")
MET: Final = readers("otel_llm_requests_total", 'met="true"')
JUDGED: Final = readers("otel_llm_requests_total", 'met=~"true|false"')
READ: Final = readers("otel_llm_tokens_read_total")
TOKENS: Final = "suffix: tok/s"
STARVING_RULE: Final = ("Rule InstanceStarvingReaders", "rules/instance-starving-readers.md")
READER_RULES: Final = (
    ("Rule ReaderStarving", "rules/reader-starving.md"),
    ("Rule ReaderAboutToStarve", "rules/reader-about-to-starve.md"),
)
BURN_RULE: Final = ("Rules AttainmentBurning", "rules/attainment-burning.md")
GOODPUT_RULE: Final = ("Rule SmoothGoodputCollapsed", "rules/smooth-goodput-collapsed.md")
BUDGETS: Final = ("Error budgets", "prometheus.md")

READER_VARIABLES: Final = (
    Variable("job", "Job", series("otel_llm_collector_queue")),
    Variable("slo_class", "SLO class", series("otel_llm_streams_in_flight", 'job=~"$job"')),
    Variable("model", "Model", series("otel_llm_streams_in_flight", 'job=~"$job"', 'slo_class=~"$slo_class"')),
    Variable("instance", "Replica", series("otel_llm_streams_in_flight", 'job=~"$job"', 'model=~"$model"')),
    Variable("measured_at", "Measured at", series("otel_llm_streams_in_flight", 'job=~"$job"'), single=True),
)
"""One place of measurement: client, relay and server see the same request, so their figures are never added up."""


def smooth(*by: str) -> str:
    """Return the smooth goodput, tokens/s."""
    penalty, refund = (readers(f"otel_llm_penalty_{name}tokens_total") for name in ("", "refunded_"))
    return f"{rates(READ, *by)}\n- {rates(penalty, *by)}\n+ {rates(refund, *by)}"


def waiting_share(*by: str) -> str:
    """Return the share of the streams in flight whose reader waits."""
    return share(total(STARVING, *by), total(FLYING, *by))


def attainment(*by: str) -> str:
    """Return the share of the requests with a verdict that met their deadlines."""
    return share(rates(MET, *by), rates(JUDGED, *by))


def _promised(name: str, *more: str) -> str:
    return series(name, *PROMISE_LABELS, *more)


def _of_replies(part: str) -> str:
    return series(f"otel_llm_token_estimate_ratio{part}", 'job=~"$job"', 'model=~"$model"')


NOW: Final = (
    Panel(
        "Readers who wait",
        "Streams in flight whose reader has nothing left to read, now.",
        (Query(total(STARVING), "readers"),),
        "short", "stat", 4, 5, ((1, WARN), (10, BAD)), links=READER_RULES,
    ),
    Panel(
        "Share who wait",
        "Of the streams in flight. The rule InstanceStarvingReaders fires for a replica above 30 %.",
        (Query(waiting_share(), "share"),),
        "percentunit", "stat", 4, 5, ((0.1, WARN), (0.3, BAD)), links=(STARVING_RULE,),
    ),
    Panel(
        "Streams in flight",
        "Streams between commit and end, now.",
        (Query(total(FLYING), "streams"),),
        "short", "stat", 4, 5,
    ),
    Panel(
        "Smooth goodput",
        "Tokens read, less the cost of waiting, a second (Wang et al., equations 10 and 11). Below 0 waits cost more "
        "than the tokens are worth.",
        (Query(smooth(), "smooth goodput"),),
        TOKENS, "stat", 4, 5, ((0, "green"),), "red", links=(GOODPUT_RULE,),
    ),
    Panel(
        "Attainment",
        "Share of the requests that met their class's deadline, of those with a verdict, over the last minutes.",
        (Query(attainment(), "attainment"),),
        "percentunit", "stat", 4, 5, ((0.95, WARN), (0.99, "green")), "red", links=(BURN_RULE,),
    ),
    Panel(
        "Least budget left",
        "What is left of the 30 days' error budget of the class that has least: 100 % is untouched, below 0 overdrawn.",
        (Query(f"min({_promised('slo:period_error_budget_remaining:ratio')})", "left"),),
        "percentunit", "stat", 4, 5, ((0, WARN), (0.25, "green")), "red", links=(BUDGETS,),
    ),
)  # fmt: skip

WAITING: Final = (
    Panel(
        "Runway of the streams in flight",
        "How many seconds of reading each reader has left. At the bottom those who wait, above them the next.",
        (Query(total(readers("otel_llm_streams_by_runway"), "runway"), "{{runway}}"),),
        "short", width=12, stacked=True, links=READER_RULES,
        colours={
            "waiting": "dark-red", "0-1s": "orange", "1-3s": "yellow", "3-10s": "light-green", "10s+": "dark-green",
        },
    ),
    Panel(
        "Readers who wait, by class and model",
        "Streams in flight whose reader has nothing left to read.",
        (Query(total(STARVING, "slo_class", "model"), "{{slo_class}} {{model}}"),),
        "short", width=12, links=READER_RULES,
    ),
    Panel(
        "Idle time",
        "Seconds waited a second, charged while readers wait: the number of readers who wait, on average.",
        (Query(rates(readers("otel_llm_idle_seconds_total"), "slo_class", "model"), "{{slo_class}} {{model}}"),),
        "short",
    ),
    Panel(
        "User idle latency of requests that ended",
        "How long each reader sat with nothing to read (Wang et al., equations 5 and 9), as a histogram over time.",
        (Query(rates(readers("otel_llm_idle_seconds_bucket"), "le"), "{{le}}"),),
        "s", "heatmap",
    ),
    Panel(
        "User idle latency",
        "Median and 99th percentile of requests that ended, as far as the histogram's bounds tell.",
        median_and_p99(readers("otel_llm_idle_seconds_bucket"), "slo_class"),
        "s",
    ),
    Panel(
        "Time to the first text that is read",
        "Median and 99th percentile: from the commit to the first token that the class's user reads.",
        median_and_p99(readers("otel_llm_time_to_first_visible_token_seconds_bucket"), "slo_class"),
        "s",
    ),
    Panel(
        "Time to first token",
        "Median and 99th percentile: from the commit to the first token of any kind.",
        median_and_p99(readers("otel_llm_ttft_seconds_bucket"), "slo_class"),
        "s",
    ),
    Panel(
        "Time between tokens",
        "Median and 99th percentile of the gaps. Behind a full buffer no reader waits in a long one: see idle time.",
        median_and_p99(readers("otel_llm_tbt_seconds_bucket"), "slo_class"),
        "s",
    ),
    Panel(
        "Recorded tokens / stated tokens",
        "Mean of replies that state their length. Far from 1 the runways of streams in flight are off: ask the server "
        "for its counts (docs/counting.md).",
        (Query(share(rates(_of_replies("_sum"), "model"), rates(_of_replies("_count"), "model")), "{{model}}"),),
        "percentunit",
    ),
    Panel(
        "Requests with a fluidity-index above 0.9",
        "Share of the requests that met more than 90 % of their token deadlines (Etalon, section 4.1).",
        (
            Query(
                "1 - "
                + share(
                    rates(readers("otel_llm_fluidity_index_bucket", 'le="0.9"'), "slo_class"),
                    rates(readers("otel_llm_fluidity_index_count"), "slo_class"),
                ),
                "{{slo_class}}",
            ),
        ),
        "percentunit", range=(0, 1),
    ),
)  # fmt: skip

GOODPUT: Final = (
    Panel(
        "Smooth goodput against throughput",
        "Tokens a second: all that were read; of requests that met their deadline; all, less the cost of waiting. "
        "Where throughput rises and smooth goodput falls, the fleet is past its knee (Wang et al., figure 6).",
        (
            Query(rates(READ), "throughput"),
            Query(rates(readers("otel_llm_tokens_met_total")), "goodput"),
            Query(smooth(), "smooth goodput"),
        ),
        TOKENS, width=12, links=(GOODPUT_RULE,),
        colours={"throughput": "blue", "goodput": "yellow", "smooth goodput": "green"},
    ),
    Panel(
        "Smooth goodput as a share of throughput",
        "100 %: no reader waited. Below 50 % waits cost half of what readers get.",
        (Query(share(f"({smooth('slo_class')})", rates(READ, "slo_class")), "{{slo_class}}"),),
        "percentunit", width=12, steps=((0.5, "green"),), base="red", links=(GOODPUT_RULE,),
    ),
)  # fmt: skip

PROMISES: Final = (
    Panel(
        "Attainment by class",
        "Share of the requests that met their class's deadline, of those with a verdict; dashed: the promise.",
        (
            Query(attainment("slo_class"), "{{slo_class}}"),
            Query(
                series("slo:objective:ratio", 'slo_class=~"$slo_class"', 'sloth_slo=~".*-attainment"'),
                "{{slo_class}} promised", dashed=True,
            ),
        ),
        "percentunit", links=(BURN_RULE,),
    ),
    Panel(
        "Error budget left",
        "Of 30 days, by promise: 100 % is untouched, below 0 overdrawn. All models, replicas and collectors together.",
        (Query(_promised("slo:period_error_budget_remaining:ratio"), "{{sloth_slo}}"),),
        "percentunit", steps=((0, WARN), (0.25, "green")), base="red", links=(BUDGETS,),
    ),
    Panel(
        "Burn rate",
        "Misses over budget in five minutes: at 1 the budget lasts as planned; an hour at 14.4, or six at 6, pages.",
        (Query(_promised("slo:current_burn_rate:ratio"), "{{sloth_slo}}"),),
        "none", steps=((1, WARN), (6, BAD), (14.4, "dark-red")), links=(BUDGETS, BURN_RULE),
    ),
    Panel(
        "Requests by outcome",
        "Requests that ended, a second.",
        (Query(rates(readers("otel_llm_requests_total"), "outcome"), "{{outcome}}"),),
        "reqps", stacked=True,
    ),
    Panel(
        "Token deadlines missed",
        "Share of the token deadlines of requests that ended, by class.",
        (
            Query(
                share(
                    rates(readers("otel_llm_deadline_misses_total"), "slo_class"),
                    rates(readers("otel_llm_deadlines_total"), "slo_class"),
                ),
                "{{slo_class}}",
            ),
        ),
        "percentunit", range=(0, None),
    ),
    Panel(
        "Requests without a verdict",
        "Share of the requests that nothing can be said of: their end, or tokens, did not arrive. No ratio has them.",
        (
            Query(f"1 - {share(rates(JUDGED), rates(readers('otel_llm_requests_total')))}", "without a verdict"),
        ),
        "percentunit", steps=((0.05, WARN),), range=(0, None),
        links=(("Rule TelemetryStale", "rules/telemetry-stale.md"),),
    ),
)  # fmt: skip

DASHBOARD: Final = Dashboard(
    "readers",
    "otel-llm / Readers",
    "Who waits now, for how long, what that costs, and what was promised.",
    READER_VARIABLES,
    (Row("Now", NOW), Row("Waiting", WAITING), Row("Goodput", GOODPUT), Row("Promises", PROMISES)),
)
