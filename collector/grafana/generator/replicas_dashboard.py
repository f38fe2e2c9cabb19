"""The dashboard *Replicas*: which replica lets its readers wait, what it carries, and what the relay did about it."""

from __future__ import annotations

from typing import Final

from generator.layout import Dashboard, Row, Variable
from generator.metric_table import series
from generator.panels import BAD, WARN, Panel, Query, median_and_p99
from generator.promql import quantile, rate, rates, readers, relays, total
from generator.readers_dashboard import (
    FLYING,
    GOODPUT_RULE,
    READ,
    READER_VARIABLES,
    STARVING,
    STARVING_RULE,
    TOKENS,
    attainment,
    smooth,
    waiting_share,
)

BACKEND: Final = 'instance=~"$instance"'
MOVES: Final = ("Moves of the relay", "relay.md")

WAITING: Final = (
    Panel(
        "Readers who wait, by replica",
        "Share of a replica's streams in flight whose reader has nothing left to read: each replica a line, from green "
        "(none) to red (all). The rule InstanceStarvingReaders fires above 30 %.",
        (Query(waiting_share("instance"), "{{instance}}"),),
        "percentunit", "status-history", 24, range=(0, 1), links=(STARVING_RULE,),
    ),
    Panel(
        "Number of readers who wait",
        "Streams in flight whose reader has nothing left to read.",
        (Query(total(STARVING, "instance"), "{{instance}}"),),
        "short", links=(STARVING_RULE,),
    ),
    Panel(
        "Idle time",
        "Seconds waited a second: the number of readers who wait, on average.",
        (Query(rates(readers("otel_llm_idle_seconds_total"), "instance"), "{{instance}}"),),
        "short",
    ),
    Panel(
        "Attainment",
        "Share of the requests that met their class's deadline, of those with a verdict.",
        (Query(attainment("instance"), "{{instance}}"),),
        "percentunit", range=(None, 1),
    ),
)  # fmt: skip

LOAD: Final = (
    Panel("Streams in flight", "Load of each replica.", (Query(total(FLYING, "instance"), "{{instance}}"),), "short"),
    Panel(
        "Tokens read",
        "Tokens that readers got, a second.",
        (Query(rates(READ, "instance"), "{{instance}}"),),
        TOKENS,
    ),
    Panel(
        "Smooth goodput",
        "Tokens read, less the cost of waiting, a second. A replica whose tokens rise while this falls is too full.",
        (Query(smooth("instance"), "{{instance}}"),),
        TOKENS, links=(GOODPUT_RULE,),
    ),
    Panel(
        "Requests that ended",
        "A second, all outcomes.",
        (Query(rates(readers("otel_llm_requests_total"), "instance"), "{{instance}}"),),
        "reqps",
    ),
    Panel(
        "Time to first token",
        "99th percentile.",
        (Query(quantile(0.99, readers("otel_llm_ttft_seconds_bucket"), "instance"), "{{instance}} p99"),),
        "s",
    ),
    Panel(
        "Gaps between tokens",
        "Median and 99th percentile.",
        median_and_p99(readers("otel_llm_tbt_seconds_bucket"), "instance"),
        "s",
    ),
    Panel(
        "Gaps between tokens of all replicas",
        "As a histogram over time: a second band far above the first is a stall.",
        (Query(rates(readers("otel_llm_tbt_seconds_bucket"), "le"), "{{le}}"),),
        "s", "heatmap", 24,
    ),
)  # fmt: skip

RELAY: Final = (
    Panel(
        "Open for new streams",
        "Whether the relay sends new streams to a replica: not while it is drained or failing.",
        (Query(f"max by (instance) ({relays('otel_llm_relay_backend_open', BACKEND)})", "{{instance}}"),),
        "bool_yes_no", "state-timeline", steps=((1, "green"),), base="red", links=(MOVES,),
        states={"0": ("closed", "red"), "1": ("open", "green")},
    ),
    Panel(
        "Streams that replicas serve",
        "As the relay counts them.",
        (Query(total(relays("otel_llm_relay_streams_in_flight", BACKEND), "instance"), "{{instance}}"),),
        "short", links=(MOVES,),
    ),
    Panel(
        "Requests by status",
        "Requests answered, a second, by the status that the client got. 499: the client left.",
        (Query(rates(relays("otel_llm_relay_requests_total"), "code"), "{{code}}"),),
        "reqps", stacked=True,
    ),
    Panel(
        "Streams moved",
        "Moves a second, failovers too.",
        (
            Query(
                rates(relays("otel_llm_relay_migrations_total"), "from", "to", "outcome"),
                "{{from}} to {{to}}: {{outcome}}",
            ),
        ),
        "ops", links=(MOVES,),
    ),
    Panel(
        "Gap that a move left",
        "From the last text before a move to the first after it.",
        median_and_p99(relays("otel_llm_relay_migration_gap_seconds_bucket")),
        "s", links=(MOVES,),
    ),
    Panel(
        "Failovers",
        "Replicas that did not serve a request (further), a second, by reason.",
        (Query(rates(relays("otel_llm_relay_failovers_total"), "reason"), "{{reason}}"),),
        "ops", links=(MOVES,),
    ),
    Panel(
        "Requests in the queue, streams paused",
        "Now: requests that wait for a place on a replica, and streams that gave theirs for a while.",
        (
            Query(total(relays("otel_llm_relay_queue")), "in the queue"),
            Query(total(relays("otel_llm_relay_paused")), "paused"),
        ),
        "short",
    ),
    Panel(
        "Wait for a place",
        "From the arrival of a request to its place on a replica, for those that got one.",
        median_and_p99(relays("otel_llm_relay_queue_seconds_bucket")),
        "s",
    ),
    Panel(
        "Requests without a slot, and pauses",
        "A second: requests that got no slot, by reason; streams that were paused.",
        (
            Query(rates(relays("otel_llm_relay_queue_refused_total"), "reason"), "{{reason}}"),
            Query(rates(relays("otel_llm_relay_preempted_total")), "paused"),
        ),
        "ops",
    ),
    Panel(
        "Late replicas",
        "A second: requests that were sent to a second replica as the first was late with its first token, by outcome.",
        (Query(rates(relays("otel_llm_relay_hedges_total"), "outcome"), "{{outcome}}"),),
        "ops",
    ),
    Panel(
        "Groups in panic",
        "Groups without a healthy replica: their requests go to the least bad one.",
        (Query(relays("otel_llm_relay_panic"), "{{instance}}"),),
        "short", steps=((1, BAD),), range=(0, None),
    ),
    Panel(
        "What the relay adds",
        "From the arrival from a replica to the writing to the client. The p99 grows before the core is full.",
        median_and_p99(relays("otel_llm_relay_added_seconds_bucket")),
        "s", steps=((0.01, WARN), (0.1, BAD)), links=(("Where to run it", "relay.md"),),
    ),
    Panel(
        "How late the relay's loop is",
        "A loop that is late delays every reader, and no replica is to blame: rows have it in relay_lag_s.",
        median_and_p99(relays("otel_llm_relay_loop_lag_seconds_bucket")),
        "s", steps=((0.02, WARN), (0.1, BAD)), links=(("Where to run it", "relay.md"),),
    ),
    Panel(
        "The relay's core",
        "CPU time a second: the relay is one event loop, and full at 100 %.",
        (Query(rate(relays("process_cpu_seconds_total")), "{{instance}}"),),
        "percentunit", steps=((0.7, WARN), (0.9, BAD)), range=(0, None),
    ),
    Panel(
        "The relay's memory",
        "Resident memory of the process.",
        (Query(relays("process_resident_memory_bytes"), "{{instance}}"),),
        "bytes", range=(0, None),
    ),
)  # fmt: skip

DASHBOARD: Final = Dashboard(
    "replicas",
    "otel-llm / Replicas",
    "Which replica lets its readers wait, what each carries, and what the relay moved.",
    (*READER_VARIABLES, Variable("relay_job", "Relay job", series("otel_llm_relay_queue"), "job")),
    (Row("Readers", WAITING), Row("Load and gaps", LOAD), Row("The relay", RELAY)),
)
