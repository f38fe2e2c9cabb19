"""The summary and the page of a profile: how an iteration grows with the batch, the context and the chunk."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final, NamedTuple

from otel_llm.audit.report.charts.line_chart import line_figure, pen
from otel_llm.audit.report.html_page import facts, page, picture, table, text, values
from otel_llm.shared.formatting import number, seconds

if TYPE_CHECKING:
    from collections.abc import Sequence

    from otel_llm.scheduling.profiles.profile import Profile


CONTEXTS: Final = (512, 1024, 2048, 4096, 8192)
"""Tokens of the context of one decode."""
PRIORS: Final = (0, 4096, 16_384)
"""Tokens of the prompts that were prefilled before."""
TPOTS_MS: Final = (20, 30, 50, 100)
"""The tiers of PolyServe, section 5.1."""
_BATCHES: Final = (1, 8, 32, 64, 128, 256, 512, 1024)
_CHUNKS: Final = (128, 512, 2048, 8192, 32_768)


class Most(NamedTuple):
    """The most decodes that a TPOT allows, and what allows no more."""

    decodes: int
    limit: str
    """`TPOT`, `KV` (the cache is full) or `batch` (`max_batch` run)."""


def batches_of(profile: Profile) -> list[int]:
    """Return the batch sizes to show, up to `max_batch`."""
    return [size for size in _BATCHES if size < profile.max_batch] + [profile.max_batch]


def chunks_of(profile: Profile) -> list[int]:
    """Return the chunks to show, up to `max_batched_tokens`."""
    return [size for size in _CHUNKS if size < profile.max_batched_tokens] + [profile.max_batched_tokens]


def contexts_of(profile: Profile) -> list[int]:
    """Return the contexts to show that one decode has room for; the whole cache if it has room for none."""
    return [context for context in CONTEXTS if context <= profile.kv_tokens] or [profile.kv_tokens]


def decodes_ns(profile: Profile, batches: Sequence[int], context: int) -> list[int | None]:
    """Return the length of an iteration of each batch at one context; None if the KV cache cannot hold it."""
    return [
        profile.iteration_ns(size, size * context) if size * context <= profile.kv_tokens else None for size in batches
    ]


def prefills_ns(profile: Profile, chunks: Sequence[int], prior: int) -> list[int]:
    """Return the length of an iteration of each chunk alone."""
    return [profile.iteration_ns(0, 0, chunk, prior) for chunk in chunks]


def most_decodes(profile: Profile, context: int, tpot_ns: int) -> Most:
    """Return the most decodes of one context whose iteration, overhead included, is no longer than `tpot_ns`.

    It is found by bisection: if a table dips, a larger batch may do, too.
    """
    room = profile.kv_tokens // context
    most, limit = (room, "KV") if room < profile.max_batch else (profile.max_batch, "batch")

    def holds(decodes: int) -> bool:
        return profile.iteration_ns(decodes, decodes * context) + profile.step_overhead_ns <= tpot_ns

    if holds(most):
        return Most(most, limit)
    low, high = 0, most
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (middle, high) if holds(middle) else (low, middle)
    return Most(low, "TPOT")


_NS_PER_MS: Final = 1_000_000
_POINTS: Final = 32


def render(profile: Profile) -> str:
    """Return a self-contained page: two charts with their values, and the decodes that a TPOT allows."""
    contexts = contexts_of(profile)
    batches, chunks = batches_of(profile), chunks_of(profile)
    decode_words = "Iterations of decodes, by their number and the context of each"
    prefill_words = "Iterations of one chunk of prefill alone, by the tokens before it"
    decode_cells = [(f"{size:,}", *(_ms(one) for one in line)) for size, line in decode_rows(profile, batches)]
    prefill_cells = [(f"{size:,}", *(_ms(one) for one in line)) for size, line in prefill_rows(profile, chunks)]
    parts = [
        f"<header><h1>{text(profile.name)}</h1><p class='lead'>{text(headline(profile))}</p>",
        f"{facts(facts_of(profile))}<p class='quiet'>{text(profile.source, 1000)}</p></header>",
        picture(
            "decodes",
            decode_words,
            decode_words,
            "<p class='quiet'>A line ends where the KV cache is full. Without overhead.</p>",
            values(table(["Decodes", *(f"{one:,} tokens, ms" for one in contexts)], decode_cells)),
        ),
        picture(
            "prefills",
            prefill_words,
            prefill_words,
            "",
            values(table(["Chunk", *(f"after {one:,}, ms" for one in PRIORS)], prefill_cells)),
        ),
        "<h2>The most decodes that a TPOT allows</h2>",
        "<p class='quiet'>Overhead included; in brackets what allows no more: the KV cache, or max_batch.</p>",
        table(["TPOT", *(f"{one:,} tokens" for one in contexts)], most_rows(profile)),
    ]
    figures = {"decodes": _decodes_figure(profile), "prefills": _prefills_figure(profile)}
    return page(f"Profile {profile.name}", "\n".join(parts), figures)


def headline(profile: Profile) -> str:
    """Return model, accelerators and engine in a line."""
    several = "" if profile.tensor_parallel == 1 else f"{profile.tensor_parallel} x "
    return f"{profile.model} on {several}{profile.accelerator}, {profile.engine}"


def facts_of(profile: Profile) -> list[tuple[str, str]]:
    """Return the limits and overheads, with their names."""
    return [
        ("KV cache", f"{profile.kv_tokens:,} tokens"),
        ("max_batch", f"{profile.max_batch:,}"),
        ("max_batched_tokens", f"{profile.max_batched_tokens:,}"),
        ("step_overhead", seconds(profile.step_overhead_ns / 1e9)),
        ("request_overhead", seconds(profile.request_overhead_ns / 1e9)),
    ]


def decode_rows(profile: Profile, batches: Sequence[int]) -> list[tuple[int, tuple[int | None, ...]]]:
    """Return each batch size with the lengths at the contexts (ns); None if the KV cache cannot hold it."""
    columns = [decodes_ns(profile, batches, context) for context in contexts_of(profile)]
    return list(zip(batches, zip(*columns, strict=True), strict=True))


def prefill_rows(profile: Profile, chunks: Sequence[int]) -> list[tuple[int, tuple[int, ...]]]:
    """Return each chunk with the lengths after PRIORS (ns)."""
    columns = [prefills_ns(profile, chunks, prior) for prior in PRIORS]
    return list(zip(chunks, zip(*columns, strict=True), strict=True))


def most_rows(profile: Profile) -> list[tuple[str, ...]]:
    """Return each TPOT with the most decodes at the contexts, as text."""
    rows = []
    for tpot_ms in TPOTS_MS:
        found = [most_decodes(profile, context, tpot_ms * _NS_PER_MS) for context in contexts_of(profile)]
        rows.append(
            (
                f"{tpot_ms} ms",
                *(f"{one.decodes:,}" + ("" if one.limit == "TPOT" else f" ({one.limit})") for one in found),
            )
        )
    return rows


def _ms(length_ns: int | None) -> str:
    return number(None if length_ns is None else length_ns / _NS_PER_MS)


def _decodes_figure(profile: Profile) -> dict[str, Any]:
    traces = []
    for index, context in enumerate(contexts_of(profile)):
        most = min(profile.max_batch, profile.kv_tokens // context)
        sizes = _spread(most)
        lengths = [profile.iteration_ns(size, size * context) for size in sizes]
        traces.append(_line(f"{context:,} tokens", sizes, lengths, index))
    return line_figure(traces, "decodes", "iteration, ms")


def _prefills_figure(profile: Profile) -> dict[str, Any]:
    sizes = _spread(profile.max_batched_tokens)
    lines = [
        _line(f"after {prior:,}", sizes, prefills_ns(profile, sizes, prior), index)
        for index, prior in enumerate(PRIORS)
    ]
    return line_figure(lines, "tokens of the chunk", "iteration, ms")


def _spread(most: int) -> list[int]:
    return sorted({max(1, most * place // _POINTS) for place in range(_POINTS + 1)})


def _line(name: str, sizes: Sequence[int], lengths_ns: Sequence[int], place: int) -> dict[str, Any]:
    colour, _ = pen(place)
    return {
        "type": "scatter",
        "mode": "lines",
        "name": name,
        "line": {"color": colour, "width": 2},
        "x": list(sizes),
        "y": [length_ns / _NS_PER_MS for length_ns in lengths_ns],
        "hovertemplate": f"{name}: %{{y:.4g}} ms at %{{x:,}}<extra></extra>",
    }
