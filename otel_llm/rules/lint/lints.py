"""The lints of `otel-llm rules check`: rules that are allowed, but hardly intended.

This table lists them all; the docs page and the tests read it. The modules `action_lints`, `condition_lints`,
`runway_lints` and `timing_lints` find them.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final, Literal, get_args

from otel_llm.rules.files.expression_errors import expression_error
from otel_llm.rules.language.tokens import ExpressionError

if TYPE_CHECKING:
    from collections.abc import Mapping

    from otel_llm.config.yaml_file import ConfigError, KeyPath, YamlFile
    from otel_llm.rules.files.ruleset import Rule
    from otel_llm.rules.language.types import Typed

LintName = Literal[
    "never-true",
    "always-true",
    "decides-nothing",
    "unit",
    "exact-comparison",
    "below-resolution",
    "for-too-long",
    "fires-at-first-token",
    "stale-facts",
    "no-minimum-count",
    "resolve-overlaps-when",
    "resolve-is-default",
    "flaps",
    "no-budget",
    "no-exact-resume",
    "uncounted-tokens",
    "fire-on-missing",
    "expires-at-once",
    "duplicate-action",
    "alert-labels-differ",
]


@dataclass(frozen=True, slots=True)
class Lint:
    """One lint: what it finds, and the remedy."""

    name: LintName
    finds: str
    remedy: str


LINTS: Final[tuple[Lint, ...]] = (
    Lint(
        "never-true",
        "a condition that holds for no facts at all, by their ranges and by its other terms",
        "`&&` asks for both sides at once, perhaps `||` is meant; or write a value that the fact can have",
    ),
    Lint("always-true", "a condition that holds whatever the facts are", "name the threshold that is meant"),
    Lint(
        "decides-nothing",
        "a term of a `&&` that always holds, or of a `||` that never does",
        "leave it out, or write what is meant",
    ),
    Lint(
        "unit",
        "seconds compared with, or added to, what is not seconds; a number of seconds that looks like milliseconds",
        "all lengths of time are seconds: 500 ms is `0.5`",
    ),
    Lint(
        "exact-comparison",
        "`==`, `!=` or `in` on a double that is measured: it is met for a nanosecond, or never",
        "compare with `<` and `>`",
    ),
    Lint(
        "below-resolution",
        "a gap shorter than the interval at which tokens are sent, which tokens under way look like; a `for` or "
        "`keep_firing_for` shorter than the 100 ms at which counts of deadlines are evaluated, or than the second at "
        "which instances and classes are; a `max_fact_age` shorter than the second after which a silent stream speaks",
        "ask for more than is measured: gaps from 0.25 s, counts of deadlines from 100ms, `max_fact_age` from 1s",
    ),
    Lint(
        "for-too-long",
        "a `for` that outlasts what it evaluates: a stream, a stream given up for lost, a window of history",
        "shorten it; for windows use the longer window itself",
    ),
    Lint(
        "fires-at-first-token",
        "a threshold on `runway_seconds` of at least the reading time of one token (1 / reading speed), without a "
        "bound on `gap_seconds`: right after its first token every healthy stream has just that. A `for` in which a "
        "stream of twice the reading speed gets past the threshold is a bound too. Without `--slo` the speeds are "
        "those of the shipped classes, of a rule that asks for no class that of their default",
        "add a bound on the gap, such as `gap_seconds > 0.3`",
    ),
    Lint(
        "stale-facts",
        "a condition that asks for facts older than `max_fact_age`, beside facts that are missing by then",
        "ask for `fact_age_seconds` alone, or raise `max_fact_age`",
    ),
    Lint(
        "no-minimum-count",
        "a share, percentile or rate that speaks for one request, or for none",
        "add the count that makes it mean something: `requests_5m >= 20`, `streams >= 10`, `deadlines >= 20`",
    ),
    Lint(
        "resolve-overlaps-when",
        "facts for which `when` and `resolve_when` both hold: the rule stays firing, since `when` comes first",
        "let `resolve_when` begin where `when` has ended",
    ),
    Lint(
        "resolve-is-default",
        "a `resolve_when` that holds wherever `when` does not, which is the default",
        "leave it out, or put a distance between the two against flapping",
    ),
    Lint(
        "flaps",
        "an alert at a bare threshold on what is measured: no `for`, no `keep_firing_for`, no `resolve_when`",
        "add `keep_firing_for`, or a `resolve_when` some way off",
    ),
    Lint(
        "no-budget",
        "an action other than an alert that nothing limits",
        "add a budget, such as `{per_request: 1, per_instance: 2 in 10s, in_flight: 4}`",
    ),
    Lint(
        "no-exact-resume",
        "a migration of streams that cannot be resumed token for token",
        "add `only_if: 'exact_resume'`",
    ),
    Lint(
        "uncounted-tokens",
        "an action that is enforced because of a runway or a number of tokens, however these were counted: if a server "
        "states no counts, they are estimated from the text",
        "add `only_if: 'token_basis == \"exact\" || token_ratio_learned'`, or keep the action in shadow",
    ),
    Lint(
        "fire-on-missing",
        "an action that is enforced because facts are missing: a sender that stops sending telemetry triggers it",
        "write `on_missing: hold`, or keep the action in shadow",
    ),
    Lint("expires-at-once", "an action with a `ttl` of nothing: it is too old when it is decided", "give it time"),
    Lint("duplicate-action", "the same action twice in one rule: it is done twice, on two budgets", "leave one out"),
    Lint(
        "alert-labels-differ",
        "one alert's name with other labels in another place: one silence or route does not fit both",
        "use the same `by` everywhere, or another name",
    ),
)
REMEDIES: Final = {lint.name: lint.remedy for lint in LINTS}
if tuple(REMEDIES) != get_args(LintName):
    raise AssertionError("the table of lints is not the list of their names")


@dataclass(frozen=True, slots=True)
class LintFinding:
    """One finding: its lint, the key in the file, and, of a condition, the part."""

    lint: LintName
    path: KeyPath
    message: str
    advice: str = ""
    text: str = ""
    node: Typed | None = None

    def config_error(self, file: YamlFile) -> ConfigError:
        """Return it as an error that points into the file."""
        message, advice = f"{self.message} [{self.lint}]", self.advice or REMEDIES[self.lint]
        if self.node is None:
            return file.refuse(self.path, message, advice, at_key=True)
        error = ExpressionError(message, advice, self.node.start, self.node.end)
        return expression_error(file, self.path, self.text, error)


@dataclass(frozen=True, slots=True)
class LocatedRule:
    """A rule, its path in the file, and the names of the SLO classes if known.

    `token_read_s`: by SLO class the seconds in which its reader reads a token, 1 / reading speed; the default first.
    """

    rule: Rule
    path: KeyPath
    classes: frozenset[str] | None = None
    token_read_s: Mapping[str, float] = field(default_factory=dict)


def shown(text: str, node: Typed) -> str:
    """Quote a part of a condition, shortened."""
    part = " ".join(text[node.start : node.end].split())
    return f"`{part}`" if len(part) <= 60 else f"`{part[:57]}...`"
