"""Text of PromQL and of rule files, escaped so that no name can become anything else."""

from __future__ import annotations

import re
from collections.abc import Mapping
from decimal import Decimal, localcontext
from fractions import Fraction
from typing import Any, Final

import yaml

Rule = dict[str, Any]
"""One recording or alerting rule, as Prometheus's rule files have it."""
Group = dict[str, Any]
Labels = Mapping[str, str]

JUDGED: Final = '=~"true|false"'
"""Of the label `met`: requests whose verdict is known."""
_NUMBER: Final = re.compile(r"[-+.]?[0-9][0-9a-fA-FxoXO_.:+-]*|[yYnN]")
_WIDTH: Final = 10_000
"""Longer than any line, so that the YAML library folds none."""
RUNBOOKS: Final = "https://github.com/otel-llm/otel-llm/blob/main/docs/runbooks.md"
"""The page with a section for each alert; its anchor is the alert's name in small letters."""


def quoted(text: str) -> str:
    """Return a string literal of PromQL; characters that are not plainly printable are escaped."""
    return '"' + "".join(map(_escaped, text)) + '"'


def _escaped(char: str) -> str:
    if char in {'"', "\\"}:
        return "\\" + char
    if char.isprintable():
        return char
    return f"\\u{ord(char):04x}" if ord(char) < 0x10000 else f"\\U{ord(char):08x}"


def selector(metric: str, labels: Labels, **more: str) -> str:
    """Return `metric{...}`; `labels` are matched exactly, `more` are operators with their literal, as `=~"a|b"`."""
    matchers = [f"{name}={quoted(value)}" for name, value in sorted(labels.items())]
    matchers += [name + rest for name, rest in more.items()]
    return f"{metric}{{{','.join(matchers)}}}" if matchers else metric


def decimal(number: Fraction) -> str:
    """Return the exact decimal text of a fraction that has one, without an exponent; raises ValueError otherwise."""
    with localcontext() as context:
        context.prec = 400
        quotient = Decimal(number.numerator) / Decimal(number.denominator)
        if Fraction(quotient) != number:
            raise ValueError(f"{number} has no finite decimal text")
        text = f"{quotient:f}"
    return text.rstrip("0").rstrip(".") if "." in text else text


def record(name: str, expr: str, labels: Labels) -> Rule:
    """Return a recording rule."""
    return {"record": name, "expr": expr, **({"labels": dict(labels)} if labels else {})}


def untemplated(text: str) -> str:
    """Return a text that Prometheus's templates leave unchanged: labels of alerts are templates."""
    return text.replace("{{", '{{ "{{" }}')


def alert(
    name: str, expr: str, severity: str, summary: str, description: str, *, wait: str = "", labels: Labels | None = None
) -> Rule:
    """Return an alerting rule; its texts and `labels` are Prometheus's templates: no name of a file as it stands."""
    return {
        "alert": name,
        "expr": expr,
        **({"for": wait} if wait else {}),
        "labels": {"severity": severity, **(labels or {})},
        "annotations": {"summary": summary, "description": description, "runbook_url": f"{RUNBOOKS}#{name.lower()}"},
    }


class _Dumper(yaml.SafeDumper):
    """A dumper that writes expressions of several lines as blocks; PyYAML decides all other quoting, but for two cases.

    It knows YAML 1.1, whose numbers are others (`1e3` and `0o14` are some in 1.2), and whose ends of lines are.
    """


def _text(dumper: yaml.SafeDumper, text: str) -> yaml.ScalarNode:
    plain = "".join(text.split("\n")).isprintable() and not _NUMBER.fullmatch(text)
    style = '"' if not plain else "|" if "\n" in text else None
    return dumper.represent_scalar("tag:yaml.org,2002:str", text, style=style)


_Dumper.add_representer(str, _text)


def rule_file(groups: list[Group], comments: list[str]) -> str:
    """Return the text of a rule file; each of `comments` is one line of printable characters."""
    head = "".join(f"# {line}\n" for line in comments)
    body = yaml.dump({"groups": groups}, Dumper=_Dumper, sort_keys=False, allow_unicode=True, width=_WIDTH)
    return head + body
