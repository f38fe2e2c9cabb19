"""What the live page costs: ten viewers and 20,000 streams in flight, at the collector and in a real Chromium.

    python benchmarks/live_page.py [--streams 20000] [--viewers 10] [--seconds 20] [--no-browser] [--json OUT]

A real `otel-llm collect` with journal, windows, five stream rules and the file of decisions on. A fifth of the streams
get 32 tokens a second in four segments, the others say once a second that they are silent. CPU is of the collector's
processes, from the kernel, over `seconds` with no viewer, then with viewers; a viewer's share is the difference divided
by their number. `same`: all see one page. `each its own`: each has a filter of its own (an instance) and follows a
stream, which is the most that viewers can ask for. The order is none, same, own, none: the mean of the two without is
the floor, their difference says how quiet the machine was.

In the browser: the time of the page's main thread from Chromium's own counters, and the longest distance of two
animation frames; `long frames` are those that Chromium itself reports as longer than 50 ms (Long Animation Frames API).
"""

from __future__ import annotations

import argparse
import asyncio
import json
import sys
import tempfile
import threading
import time
from contextlib import ExitStack, contextmanager
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from collector_load import replies
from collector_load.classes import write_classes
from collector_load.fleet import Slots, write_for_soon
from collector_load.sender import sending
from collector_load.service import Collector, collecting

if TYPE_CHECKING:
    from collections.abc import Iterator

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "tests"))
from support.audit.chromium import Page, browser
from support.requirements import has

WRITING_SHARE = 0.2
SEGMENT_TOKENS = 8
RAMP_STREAMS_S = 4_000
SETTLE_S = 8.0
CALM_TOKENS = 600
"""The text of a silent stream: its class reads one token a second, so that its reader never waits."""
FRAMES = """
window.frames_ = []; window.long_ = 0;
const observer = new PerformanceObserver((list) => { window.long_ += list.getEntries().length; });
observer.observe({type: 'long-animation-frame'});
function frame(before) { requestAnimationFrame((now) => { window.frames_.push(now - before); frame(now); }); }
frame(performance.now());
"""


@dataclass(frozen=True, slots=True)
class Measured:
    """One measurement of the collector: `cores` with so many viewers, and what each of them received."""

    case: str
    viewers: int
    cores: float
    waiting: float
    kilobytes_s: float


@dataclass(frozen=True, slots=True)
class Shown:
    """The page in a browser; times in ms, the main thread's in seconds a second."""

    task_share: float
    script_share: float
    layout_share: float
    frame_p99_ms: float
    frame_max_ms: float
    long_frames: int
    rows: int


def calm(rng: np.random.Generator) -> replies.Script:
    """Return a stream with text enough for the whole benchmark that says once a second that nothing comes."""
    times = replies.TTFT_NS + np.sort(rng.integers(0, 190_000_000, CALM_TOKENS))
    return replies.Script("quiet", times.tolist(), None)


def progress(text: str) -> None:
    print(f"# {text}", file=sys.stderr, flush=True)


@contextmanager
def viewing(web: str, queries: list[str]) -> Iterator[list[int]]:
    """Read the events of viewers in a thread; give their bytes so far."""
    received = [0] * len(queries)
    host, _, port = web.removeprefix("http://").partition(":")
    loop = asyncio.new_event_loop()

    async def view(at: int, query: str) -> None:
        reader, writer = await asyncio.open_connection(host, int(port))
        writer.write(f"GET /v1/events{query} HTTP/1.1\r\nHost: {host}\r\n\r\n".encode())
        while piece := await reader.read(65536):
            received[at] += len(piece)
        raise ConnectionError(f"viewer {at} was dropped")

    tasks = [loop.create_task(view(at, query)) for at, query in enumerate(queries)]

    def run() -> None:
        loop.run_forever()

    thread = threading.Thread(target=run, daemon=True)
    thread.start()
    try:
        yield received
        failed = [task.exception() for task in tasks if task.done()]
        if failed:
            raise SystemExit(f"not every viewer stayed: {failed}")
    finally:
        loop.call_soon_threadsafe(loop.stop)
        thread.join()
        for task in tasks:
            task.cancel()
        loop.run_until_complete(asyncio.wait(tasks) if tasks else asyncio.sleep(0))
        loop.close()


def measure(collector: Collector, case: str, queries: list[str], seconds: float) -> Measured:
    """Return the cores of a collector with these viewers."""
    with viewing(collector.web, queries) as received:
        time.sleep(3.0)  # their first messages hold the history
        cpu_s, waited_s, bytes_, began = collector.cpu_s(), collector.waited_s(), sum(received), time.monotonic()
        time.sleep(seconds)
        lasted_s = time.monotonic() - began
        return Measured(
            case,
            len(queries),
            (collector.cpu_s() - cpu_s) / lasted_s,
            (collector.waited_s() - waited_s) / lasted_s,
            (sum(received) - bytes_) / lasted_s / 1e3 / max(1, len(queries)),
        )


def own_queries(page: Any, viewers: int) -> list[str]:
    """Return for each viewer a filter of its own and a stream to follow."""
    keys = [f"{row['trace_id']}-{row['span_id']}-{row['choice']}" for row in page["streams"]]
    return [f"?instance=replica-{at % 16}&stream={keys[at % len(keys)]}" for at in range(viewers)]


def in_browser(page: Page, web: str, seconds: float) -> Shown:
    """Return how the page does in a browser, with a stream open."""
    page.call("Page.navigate", url=f"{web}/")
    page.wait(lambda: bool(page.evaluate("document.querySelectorAll('#streams tbody tr').length > 1")))
    page.evaluate("document.querySelector('#streams tbody tr').click()")
    time.sleep(3.0)
    page.call("Performance.enable", timeDomain="threadTicks")
    page.evaluate(FRAMES)
    before, began = counters(page), time.monotonic()
    time.sleep(seconds)
    after, lasted_s = counters(page), time.monotonic() - began
    frames = sorted(page.evaluate("window.frames_"))
    share = {name: (after[name] - before[name]) / lasted_s for name in before}
    rows = page.evaluate("document.querySelectorAll('#streams tbody tr').length")
    if page.complaints():
        raise SystemExit(f"the page complained: {page.complaints()}")
    return Shown(
        share["TaskDuration"],
        share["ScriptDuration"],
        share["LayoutDuration"] + share["RecalcStyleDuration"],
        frames[len(frames) * 99 // 100],
        frames[-1],
        page.evaluate("window.long_"),
        rows,
    )


def counters(page: Page) -> dict[str, float]:
    return {
        one["name"]: one["value"] for one in page.call("Performance.getMetrics")["metrics"] if "Duration" in one["name"]
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--streams", type=int, default=20_000)
    parser.add_argument("--viewers", type=int, default=10)
    parser.add_argument("--seconds", type=float, default=20.0)
    parser.add_argument("--no-browser", action="store_true")
    parser.add_argument("--json", type=Path)
    chosen = parser.parse_args()
    streams, viewers, seconds = chosen.streams, chosen.viewers, chosen.seconds
    writers = round(streams * WRITING_SHARE)
    ramp_s = max(2.0, streams / RAMP_STREAMS_S)
    whole_s = ramp_s + SETTLE_S + 6 * (seconds + 6)
    mix = [
        Slots(streams - writers, calm, ramp_s, 1.0),
        Slots(writers, partial(replies.healthy, segment_tokens=SEGMENT_TOKENS), ramp_s, 4.0),
    ]
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="otel-llm-live-")))
        slo = write_classes(folder / "slo.yaml", SEGMENT_TOKENS)
        collector = stack.enter_context(collecting(folder, slo=slo, source=None))
        progress(f"{streams} streams, {writers} of them writing, for {whole_s:.0f} s: encoding")
        _, start_ns = write_for_soon(folder / "exports", mix, whole_s, 256)
        sender = stack.enter_context(sending(folder / "exports", collector.grpc))
        sender.go()
        time.sleep(max(0.0, start_ns / 1e9 + ramp_s + SETTLE_S - time.time()))
        snapshot = streams_of(collector.web)
        progress(f"{snapshot['in_flight']} in flight, {snapshot['starving']} readers wait")
        cases = {"none": [], "same": [""] * viewers, "each its own": own_queries(snapshot, viewers), "none again": []}
        found = []
        for case, queries in cases.items():
            found.append(measure(collector, case, queries, seconds))
            progress(f"{case}: {found[-1].cores:.3f} cores, {found[-1].kilobytes_s:.1f} kB/s a viewer")
        shown = None
        if not chosen.no_browser and has("chromium"):
            page = stack.enter_context(browser(1440, 1000))
            shown = in_browser(page, collector.web, seconds)
        flying = streams_of(collector.web)["in_flight"]
    floor = (found[0].cores + found[3].cores) / 2
    print(f"\n{flying} streams in flight, {viewers} viewers, {seconds:.0f} s each")
    print(f"{'viewers':>14}{'cores':>9}{'a viewer':>11}{'kB/s':>8}{'waiting':>9}")
    for one in found:
        each = f"{(one.cores - floor) / one.viewers:10.2%}" if one.viewers else f"{one.cores - floor:+10.3f}"
        print(f"{one.case:>14}{one.cores:>9.3f} {each}{one.kilobytes_s:>8.1f}{one.waiting:>9.3f}")
    if shown is not None:
        print(
            f"\nChromium, {shown.rows} rows and a stream open: main thread {shown.task_share:.1%} of a core (script "
            f"{shown.script_share:.1%}, style and layout {shown.layout_share:.1%}); frames p99 "
            f"{shown.frame_p99_ms:.0f} ms, max {shown.frame_max_ms:.0f} ms, over 50 ms: {shown.long_frames}"
        )
    if chosen.json is not None:
        values = {
            "in_flight": flying,
            "cases": [asdict(one) for one in found],
            "page": None if shown is None else asdict(shown),
        }
        chosen.json.write_text(json.dumps(values, indent=1) + "\n", encoding="utf-8")


def streams_of(web: str) -> Any:
    from urllib.request import urlopen

    with urlopen(f"{web}/v1/streams", timeout=60) as answer:
        return json.load(answer)


if __name__ == "__main__":
    main()
