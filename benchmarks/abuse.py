"""What attacks at 1 MB/s cost a collector or an application, and the others that use it.

    python benchmarks/abuse.py [--only NAME,..] [--seconds 5] [--megabytes-s 1] [--source TREE]
    python benchmarks/abuse.py --application [--only NAME,..] [--seconds 5] [--megabytes-s 1]

The collector is a black box: a real `otel-llm collect` with its defaults for each attack, an attacker at 127.0.0.2 who
posts over HTTP on 16 connections, and an application at 127.0.0.1 whose exports (gRPC, every 250 ms) tell of readers
that run dry again and again.

`sent`, `is`: MB a second on the wire, and decompressed; less than was wanted if the collector answers slowly.
`cpu`: CPU seconds of the collector's processes a second, from the attack's begin until all is evaluated. `export`: from
the due time of an export of the application to its acknowledgement, `decision`: from the flip of a rule to its record,
ms. `memory`: of the process tree before the attack and after it, MB. `waiting`: seconds a second that the collector's
threads were ready and the machine did something else; if that is much, delays are the machine's.

The application reads replies with OpenAI's SDK: ten of an honest provider, a chunk each 20 ms, and four of a hostile
one, 1 MB/s together. `lag`: from the sending of an honest chunk to the application's loop having it, ms, with the bare
SDK and recorded; `cpu`: seconds of the application's process, its start included; `memory`: its peak, MB.
"""

from __future__ import annotations

import argparse
import signal
import sys
import tempfile
import time
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from abuse_load import application
from abuse_load.attacker import Attacked, attacking
from abuse_load.bombs import ATTACKS
from abuse_load.hostile_replies import REPLIES
from collector_load import replies
from collector_load.classes import write_classes
from collector_load.fleet import Slots, write_for_soon
from collector_load.sender import sending
from collector_load.service import DRY_RULE, Collector, collecting
from collector_load.spread import Spread
from overhead_parts.servers import process

if TYPE_CHECKING:
    from contextlib import AbstractContextManager
    from multiprocessing.connection import Connection

SEGMENT_TOKENS = 8
WRITING, DRY = 40, 120
"""Streams that get tokens, and those whose readers run dry."""
RAMP_S, SETTLE_S, AFTER_S = 2.0, 3.0, 1.0
NONE = "(no attack)"
HEADING = (
    f"{'':25}{'MB/s':^14}{'':8}{'export, ms':^18}{'decision, ms':^18}{'memory, MB':^18}\n"
    f"{'attack':25}{'sent':>7}{'is':>7}{'cpu':>8}{'p50':>9}{'p99':>9}{'p50':>9}{'p99':>9}{'before':>9}{'after':>9}"
    f"{'waiting':>9}  answers"
)


def measure(name: str, chosen: argparse.Namespace) -> str:
    """Measure one attack in a collector of its own; return a row of the table."""
    mix = [
        Slots(WRITING, partial(replies.healthy, segment_tokens=SEGMENT_TOKENS), RAMP_S, 4.0),
        Slots(DRY, replies.sample, RAMP_S, 3.0),
    ]
    begin_s = RAMP_S + SETTLE_S
    with tempfile.TemporaryDirectory(prefix="otel-llm-bench-") as folder_name:
        folder = Path(folder_name)
        slo = write_classes(folder / "slo.yaml", SEGMENT_TOKENS)
        with (
            collecting(folder, "--rules", str(DRY_RULE), slo=slo, source=chosen.source) as collector,
            _attack(name, collector, chosen) as attacker,
        ):
            sent, start_ns = write_for_soon(folder / "exports", mix, begin_s + chosen.seconds + AFTER_S)
            begin_ns, end_ns = (start_ns + int(at_s * 1e9) for at_s in (begin_s, begin_s + chosen.seconds))
            with sending(folder / "exports", collector.grpc) as sender:
                sender.go()
                _sleep_until(begin_ns)
                before_mb, cpu_s, waited_s = collector.memory_mb()[0], collector.cpu_s(), collector.waited_s()
                began = time.monotonic()
                if attacker is not None:
                    attacker.send("go")
                _sleep_until(end_ns)
                done = Attacked() if attacker is None else attacker.recv()
                lasted_s = time.monotonic() - began
                delivery = sender.done()
            cpu_s = collector.when_quiet() - cpu_s
            waited_s = collector.waited_s() - waited_s
            after_mb = collector.memory_mb()[0]
            acknowledged = Spread.of(wait_s * 1e3 for due_ns, wait_s in delivery.waits if begin_ns <= due_ns < end_ns)
            decided = Spread.of(
                (record["time_unix_nano"] - record["flip_unix_nano"] + record["now_offset_nano"]) / 1e6
                for record in collector.decided("RanDry")
                if begin_ns <= sent.dry_ns.get(record["trace_id"], 0) < end_ns
            )
    answers = ", ".join(f"{number} x {status or 'none'}" for status, number in sorted(done.answers.items()))
    return (
        f"{name:25}{done.sent_bytes / lasted_s / 1e6:>7.2f}{done.decompressed_bytes / lasted_s / 1e6:>7.0f}"
        f"{cpu_s / chosen.seconds:>8.2f}{acknowledged.p50:>9.1f}{acknowledged.p99:>9.1f}{decided.p50:>9.1f}"
        f"{decided.p99:>9.1f}{before_mb:>9.0f}{after_mb:>9.0f}{waited_s / chosen.seconds:>9.2f}  {answers}"
        f"{f' ({delivery.unsent} of the others lost)' if delivery.unsent else ''}"
    )


def _attack(
    name: str, collector: Collector, chosen: argparse.Namespace
) -> AbstractContextManager[Connection] | AbstractContextManager[None]:
    from contextlib import nullcontext

    if name == NONE:
        return nullcontext()
    return attacking(name, collector.http, chosen.megabytes_s * 1e6, chosen.seconds)


APPLICATION_HEADING = (
    f"{'':25}{'bare: lag, ms':^18}{'':8}{'':8}{'recorded: lag, ms':^18}\n"
    f"{'attack':25}{'p50':>9}{'p99':>9}{'cpu':>8}{'memory':>8}{'p50':>9}{'p99':>9}{'cpu':>8}{'memory':>8}  failures"
)


def measure_application(name: str, address: str, sink: int, chosen: argparse.Namespace) -> str:
    """Measure one attack on the application, bare and recorded; return a row of the table."""
    attack = "" if name == NONE else name
    row, failures = f"{name:25}", []
    for port in (0, sink):
        found = application.run(address, attack, sink=port, seconds=chosen.seconds, bytes_s=chosen.megabytes_s * 1e6)
        lag = Spread.of(found["lags_ms"])
        row += f"{lag.p50:>9.1f}{lag.p99:>9.1f}{found['cpu_s']:>8.2f}{found['peak_mb']:>8.0f}"
        failures.append(sorted(found["failures"]))
    return row + ("" if failures == [[], []] else f"  {failures[0]} bare, {failures[1]} recorded")


def _sleep_until(unix_ns: int) -> None:
    time.sleep(max(0.0, (unix_ns - time.time_ns()) / 1e9))


def names(text: str) -> list[str]:
    """Return the attacks that are named, each by the beginning of its name."""
    found = [one for word in text.split(",") for one in (NONE, *ATTACKS, *REPLIES) if one.startswith(word)]
    if not found:
        raise argparse.ArgumentTypeError(f"none of these: {', '.join((*ATTACKS, *REPLIES))}")
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--application", action="store_true", help="attack an application that is recorded")
    parser.add_argument("--only", type=names, metavar="NAME,..", help=", ".join((*ATTACKS, *REPLIES)))
    parser.add_argument("--seconds", type=float, default=5.0, help="of each attack (default: %(default)s)")
    parser.add_argument("--megabytes-s", type=float, default=1.0, help="that the attacker sends (default: %(default)s)")
    parser.add_argument("--source", type=Path, metavar="TREE", help="source tree whose collector is measured")
    chosen = parser.parse_args()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))  # so that what was started is stopped
    attacks = REPLIES if chosen.application else ATTACKS
    wanted = [NONE, *attacks] if chosen.only is None else [one for one in chosen.only if one == NONE or one in attacks]
    if not chosen.application:
        print(HEADING, flush=True)
        for name in wanted:
            print(measure(name, chosen), flush=True)
        return
    print(APPLICATION_HEADING, flush=True)
    with application.providers() as address, process("sink") as (_, sink):
        for name in wanted:
            print(measure_application(name, address, sink, chosen), flush=True)


if __name__ == "__main__":
    main()
