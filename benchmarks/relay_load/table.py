"""What was measured, as text for people."""

from __future__ import annotations

import math
import os
import platform
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from relay_load.load import Figures

PEER: Final = "litellm"
FULL: Final = 0.95
"""From this share of a core on, what is measured are queues."""


def machine() -> dict[str, Any]:
    """Return what the figures were measured on."""
    lines = Path("/proc/cpuinfo").read_text().splitlines()
    names = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    cores = len(os.sched_getaffinity(0))
    return {"cpu": names[0] if names else platform.machine(), "cores": cores, "python": platform.python_version()}


def aligned(rows: list[list[str]]) -> str:
    """Return rows as lines; the first column to the left, the others to the right."""
    widths = [max(len(row[column]) for row in rows) for column in range(len(rows[0]))]
    return "\n".join(
        "  ".join(
            cell.rjust(width) if place else cell.ljust(width)
            for place, (cell, width) in enumerate(zip(row, widths, strict=True))
        ).rstrip()
        for row in rows
    )


def number(value: float, unit: str = "", *, sign: bool = False) -> str:
    """Return a number with about three digits; a dash if there is none."""
    if math.isnan(value):
        return "-"
    digits = 0 if abs(value) >= 100 else 1 if abs(value) >= 10 else 2
    return f"{value:{'+' if sign else ''},.{digits}f}{unit}"


def _whole(one: Figures) -> str:
    return f"{one['whole']:,.0f}/{one['streams']:,.0f}"


def _share(of_a_core: float) -> str:
    return f"{of_a_core:.0%}{' full' if of_a_core >= FULL else ''}"


def _needed(load: dict[str, Any], one: Figures) -> float:
    """Return the share of a core that a load takes while all its streams run: not all do at its begin and its end."""
    return float(one["cpu_us_a_chunk"] / 1e6 * load["streams"] * load["pace"])


def _troubles(load: dict[str, Any]) -> str:
    return "".join(
        f"\n{name}: {count} not whole: {reason}"
        for name, each in load["troubles"].items()
        for reason, count in each.items()
    )


def _paced(load: dict[str, Any]) -> str:
    head = ["", "whole", "first p50", "first p99", "token p50", "token p99", "CPU a chunk", "core", "memory"]
    rows = [head]
    for name, one in load["by_name"].items():
        proxy = "added_first_p50_us" in one
        keys = ("first_p50_us", "first_p99_us", "token_p50_us", "token_p99_us")
        times = [number(one[f"added_{key}" if proxy else key] / 1e3, " ms", sign=proxy) for key in keys]
        spent = (
            [number(one["cpu_us_a_chunk"], " us"), _share(_needed(load, one)), number(one["memory_mib"], " MiB")]
            if proxy
            else ["", "", ""]
        )
        rows.append([name, _whole(one), *times, *spent])
    beyond = "".join(f"\n{name}: not run: it carried {number(most)} chunks/s" for name, most in load["beyond"].items())
    beyond += _troubles(load)
    total = load["streams"] * load["pace"]
    title = (
        f"{load['streams']} streams at {load['pace']:g} tokens/s ({total:,.0f} chunks/s), {load['tokens']} tokens each"
    )
    return f"{title}; + is added to straight\n{aligned(rows)}{beyond}"


def _flat(load: dict[str, Any]) -> str:
    by_name = load["by_name"]
    peer = by_name.get(PEER, {}).get("chunks_a_cpu_second", math.nan)
    rows = [["", "whole", "chunks/s", "core", "CPU a chunk", "chunks/s a core", f"of {PEER}'s"]]
    for name, one in by_name.items():
        if not one["busy"]:  # straight: there is no proxy
            rows.append([name, _whole(one), number(one["chunks_a_second"]), "", "", "", ""])
            continue
        a_core = one["chunks_a_cpu_second"]
        cells = [
            number(one["chunks_a_second"]),
            _share(one["busy"]),
            number(one["cpu_us_a_chunk"], " us"),
            number(a_core),
        ]
        rows.append([name, _whole(one), *cells, number(a_core / peer, " x")])
    title = f"Flat out: {load['streams']} streams of {load['tokens']} tokens, as fast as they are taken"
    return f"{title}\n{aligned(rows)}{_troubles(load)}"


def _starts(found: dict[str, Any]) -> str:
    rows = [["50 streams that begin within 20 ms", "first p50", "added"]]
    for name, first_ms in found["first_p50_ms"].items():
        rows.append([name, number(first_ms, " ms"), number(found["added_ms"][name], " ms", sign=True)])
    return aligned(rows)


def _bodies(found: dict[str, Any]) -> str:
    columns = list(next(iter(found.values())))
    rows = [["another reader's longest wait grows by", *columns]]
    rows += [[name, *(number(of[one], " ms", sign=True) for one in columns)] for name, of in found.items()]
    return aligned(rows)


def _faults(found: dict[str, Any]) -> str:
    faults = list(next(iter(found.values())))
    rows = [["one of two backends", *faults]]
    for name, of in found.items():
        rows.append([name, *(", ".join(f"{count} {end}" for end, count in sorted(of[one].items())) for one in faults)])
    return aligned(rows)


def _storm(found: list[dict[str, float]]) -> str:
    rows = [["storm of 200", "stalled", "asked", "whole", "asked p50", "last asked", "this process late by"]]
    for count, one in enumerate(found, 1):
        whole = [f"{one[key]:.0f}" for key in ("stalled", "asked", "whole")]
        rows.append(
            [str(count), *whole, *(number(one[key], " ms") for key in ("asked_p50_ms", "asked_p100_ms", "late_ms"))]
        )
    return aligned(rows)


SITUATIONS: Final[Mapping[str, Callable[[Any], str]]] = {
    "starts": _starts,
    "bodies": _bodies,
    "faults": _faults,
    "storm": _storm,
}


def table(found: dict[str, Any]) -> str:
    """Return all that was found, and what was not."""
    on = found["machine"]
    versions = ", ".join(f"{name} {version}".strip() for name, version in found["versions"].items())
    load = ", ".join(f"{one:.1f}" for one in os.getloadavg())
    parts = [f"{on['cpu']}, {on['cores']} cores, Python {on['python']}, load at the end {load}\n{versions}"]
    parts += [show(found[name]) for name, show in SITUATIONS.items() if name in found]
    parts += [_paced(load) for load in found["paced"]]
    if found["flat_out"]:
        parts.append(_flat(found["flat_out"]))
    notes = [f"{name}: not run: {reason}" for name, reason in found["not_run"].items()]
    shares = [_needed(load, one) for load in found["paced"] for one in load["by_name"].values()]
    if max(shares, default=0) >= FULL:
        notes.append("full: the core does not carry this load, and the times are those of a queue that grows")
    return "\n\n".join([*parts, *(["\n".join(notes)] if notes else [])])
