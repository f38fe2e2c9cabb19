"""The result of a finished run: validity first, then what its readers felt."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final

import numpy as np

from otel_llm.audit.calibrate.prefill import Prefill
from otel_llm.audit.kernel.workers import cores
from otel_llm.audit.load import load
from otel_llm.audit.report.report import render
from otel_llm.audit.write import write_text
from otel_llm.bench.judging import first_token_targets, fluid_rate_of
from otel_llm.shared.formatting import number, seconds, share

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    import pyarrow as pa
    from numpy.typing import NDArray

    from otel_llm.audit.result import Audit
    from otel_llm.bench.client.observed_request import ObservedRequest
    from otel_llm.bench.judging import Validity
    from otel_llm.slo.classes import SloClasses
    from otel_llm.slo.fluid.fluid_rate import FluidRate

BASES: Final = ("chunk", "estimated", "exact")
"""Bases of token counts, the weakest first."""
UNSTATED: Final = "none"


@dataclass(frozen=True, slots=True)
class WarmUp:
    """The requests that were cut from the beginning: how many, until when (ns from the start), and by what rule."""

    requests: int
    until_ns: int
    rule: str


@dataclass(frozen=True, slots=True)
class Pace:
    """How tokens follow each other, (p50, p99) in s: the gaps of all replies (TBT), and the mean gap of each (TPOT)."""

    tbt_s: tuple[float, float]
    tpot_s: tuple[float, float]

    @classmethod
    def of(cls, requests: Sequence[ObservedRequest]) -> Pace | None:
        """Return that of the replies with two tokens; None if there are none."""
        gaps = [np.diff(one.times_ns) for one in requests if len(one.times_ns) > 1]
        if not gaps:
            return None
        return cls(_percentiles(np.concatenate(gaps)), _percentiles(np.array([one.mean() for one in gaps])))

    def lines(self) -> list[tuple[str, str]]:
        """Return the lines of a table."""
        return [("TBT", _halves(self.tbt_s, "gaps between tokens")), ("TPOT", _halves(self.tpot_s, "replies"))]


@dataclass(frozen=True, slots=True)
class LoadResult:
    """A judged run, without its warm-up.

    `validity` is of the whole run; `audit`: None if no request has ended, `pace`: if no reply has two tokens.
    `token_basis`: the weakest of all replies with tokens. `prompt_tokens`: means of what was asked for and of what the
    server counted.
    """

    validity: Validity
    open_loop: bool
    requests: int
    length_ns: int
    errors: Counter[str]
    token_basis: str
    prompt_tokens: dict[str, float | None]
    warm_up: WarmUp
    fluid: FluidRate | None = None
    first_tokens: Prefill | str = ""
    pace: Pace | None = None
    audit: Audit | None = field(default=None, repr=False)

    def as_json(self) -> dict[str, Any]:
        """Return the object of `--format json`."""
        validity = self.validity
        return {
            "valid": validity.valid,
            "why": validity.why,
            "loop": "open" if self.open_loop else "closed",
            "send_lag_ms": validity.send_lag_ms,
            "cpu": validity.cpu,
            "requests": self.requests,
            "errors": dict(sorted(self.errors.items())),
            "token_basis": self.token_basis,
            "prompt_tokens": self.prompt_tokens,
            "warm_up": {
                "requests": self.warm_up.requests,
                "seconds": self.warm_up.until_ns / 1e9,
                "rule": self.warm_up.rule,
            },
            "fluid_token_rate": None if self.fluid is None else self.fluid.tokens_per_s,
            "ttft_targets": self.curve_points(),
            "classes": {} if self.audit is None else self.audit.summary()["classes"],
        }

    def curve_points(self) -> list[tuple[int, float]] | None:
        """Return the first-token targets as (input tokens, s); None if there are none."""
        found = self.first_tokens
        return None if isinstance(found, str) else [(tokens, at_ns / 1e9) for tokens, at_ns in found.curve.points]

    def lines(self) -> list[tuple[str, str]]:
        """Return what is beside the audit's table, as (label, text)."""
        validity, asked = self.validity, self.prompt_tokens
        lag = validity.send_lag_ms
        sent_late = "closed loop: a request is sent when another has ended"
        if lag is not None:
            sent_late = ", ".join(f"{name} {lag[name]:.1f} ms" for name in ("p50", "p99", "max"))
        counted = "not counted by the server"
        if asked["counted"] is not None and asked["asked"] is not None:
            counted = f"{asked['counted']:.0f} tokens (asked for: {asked['asked']:.0f})"
        lines = [] if self.pace is None else self.pace.lines()
        lines += [
            ("send lag", sent_late),
            ("client", f"{share(validity.cpu)} of a core"),
            ("errors", ", ".join(f"{kind} {count:,}" for kind, count in sorted(self.errors.items())) or "none"),
            ("tokens counted by", self.token_basis),
            ("prompts", counted),
            ("warm-up", self._warm_up_words()),
        ]
        if self.fluid is not None:
            rate, tbt = number(self.fluid.tokens_per_s), seconds(self.fluid.tbt_ns / 1e9)
            lines.append(
                ("fluid token rate", f"{rate} tokens/s: a token every {tbt} keeps 99 % of the requests at fluidity 0.9")
            )
        if isinstance(self.first_tokens, Prefill):
            lines.append(("first tokens kept", self.first_tokens.yaml().strip()))
        elif self.first_tokens:
            lines.append(("first tokens kept", f"no curve: {self.first_tokens.partition(' (')[0]}"))
        return lines

    def _warm_up_words(self) -> str:
        cut = self.warm_up
        if not cut.requests:
            return f"none cut ({cut.rule})"
        return f"the first {cut.requests:,} requests ({seconds(cut.until_ns / 1e9)}) are left out ({cut.rule})"

    def verdict(self) -> str:
        """Return the first line: whether the run is valid, and why not."""
        if self.validity.valid:
            return "valid: the client kept out of the result"
        return f"NOT VALID: {self.validity.why}"

    def write_html(self, path: Path) -> None:
        """Write the audit's report with this run at its head. Raises OutputError if it cannot be written."""
        assert self.audit is not None  # noqa: S101  the caller has checked
        lines = [("", self.verdict()), *self.lines()]
        write_text(path, render(self.audit, title="What readers felt at this load", first=("The load", lines)))


def judge_run(
    folder: Path,
    measured: Sequence[ObservedRequest],
    validity: Validity,
    warm_up: WarmUp,
    classes: SloClasses,
    *,
    class_name: str | None,
    open_loop: bool,
    windows: bool,
) -> LoadResult:
    """Judge a recorded run by the audit of its folder."""
    batches: list[pa.RecordBatch] = []
    audit, fluid = None, None
    first_tokens: Prefill | str = ""
    if measured:
        audit = load(folder, slo=classes, windows=windows, jobs=cores(), observe=batches.append)
        slo = classes.get(classes.default if class_name is None else class_name)
        fluid = fluid_rate_of(batches, slo.reads)
        first_tokens = first_token_targets(batches, classes)
    ends = [one.end_ns for one in measured if one.end_ns is not None]
    return LoadResult(
        validity=validity,
        open_loop=open_loop,
        requests=len(measured),
        length_ns=max(ends) - measured[0].intended_ns if ends else 0,
        errors=Counter(one.error for one in measured if one.error is not None),
        token_basis=UNSTATED if audit is None else _weakest(audit),
        prompt_tokens={
            "asked": _mean([one.input_tokens for one in measured]),
            "counted": _mean([one.prompt_tokens for one in measured if one.prompt_tokens is not None]),
        },
        warm_up=warm_up,
        fluid=fluid,
        first_tokens=first_tokens,
        pace=Pace.of(measured),
        audit=audit,
    )


def _weakest(audit: Audit) -> str:
    table = audit.judged_table
    counted = zip(table.column("token_basis").to_pylist(), table.column("tokens").to_pylist(), strict=True)
    found = {basis for basis, tokens in counted if tokens}
    return next((basis for basis in BASES if basis in found), UNSTATED)


def _percentiles(gaps_ns: NDArray[Any]) -> tuple[float, float]:
    """Return the p50 and the p99 of gaps, by nearest rank, s."""
    p50, p99 = (np.quantile(gaps_ns, [0.5, 0.99], method="inverted_cdf") / 1e9).tolist()
    return p50, p99


def _halves(found_s: tuple[float, float], what: str) -> str:
    p50, p99 = found_s
    return f"half of the {what} at most {seconds(p50)}, 99 % at most {seconds(p99)}"


def _mean(values: Sequence[int]) -> float | None:
    return float(np.mean(values)) if values else None
