"""Rules of every shape that the language has, drawn at random, with thresholds that short streams cross."""

from __future__ import annotations

from random import Random

from otel_llm.rules.files.ruleset import Action, Limits, OnMissing, Rule, RuleSet
from otel_llm.rules.language.condition import condition

MS = 1_000_000
LENGTHS = {
    "age_seconds": ("0.5", "1.0", "1.25", "2.0", "3.0"),
    "gap_seconds": ("0.0", "0.1", "0.25", "0.3", "0.5", "1.0", "1.5"),
    "silence_seconds": ("0.0", "0.1", "0.25", "0.3", "1.0"),
    "idle_seconds": ("0.0", "0.3", "0.5", "1.0"),
    "idle_decode_seconds": ("0.0", "0.25", "0.5"),
    "runway_seconds": ("-0.5", "0.0", "0.2", "0.5", "1.0"),
    "fact_age_seconds": ("0.0", "0.1", "0.4", "1.0", "2.5", "7.0"),
    "ttft_seconds": ("0.1", "0.3", "1.0"),
    "rate_tokens_per_second": ("4.0", "10.0", "40.0"),
    "fluidity_index": ("0.5", "0.8", "0.95"),
}
"""Facts that are doubles, and thresholds that short streams cross."""
NUMBERS = {
    "tokens": ("0", "1", "3", "8", "40"),
    "tokens_read": ("0", "1", "3", "8"),
    "deadlines": ("0", "3", "12"),
    "deadline_misses": ("0", "1", "4", "9"),
}
WORDS = {
    "slo_class": ("c0", "c1", ""),
    "model": ("m", "n", ""),
    "instance": ("a", ""),
    "measured_at": ("client", "server"),
    "token_basis": ("exact", "chunk", "estimated"),
}
ORDERS = ("<", "<=", ">", ">=", "<", ">", "==", "!=")
STEPS = ("deadlines", "deadline_misses", "fluidity_index")


def comparison(random: Random, *, plain: bool) -> str:
    """Draw one comparison; `plain`: of one fact, not of deadlines, with one constant, for the prefilter."""
    kind = random.choice((0, 1, 2, 6)) if plain else random.randrange(12)
    op = random.choice(ORDERS)
    if kind == 0:
        name = random.choice(list(WORDS))
        return random.choice(
            (
                f'{name} == "{random.choice(WORDS[name])}"',
                f'{name} != "{random.choice(WORDS[name])}"',
                f'{name} in ["{random.choice(WORDS[name])}", "x"]',
            )
        )
    if kind == 1:
        name = random.choice(("exact_resume", "exact_resume", "token_ratio_learned"))
        return random.choice((name, f"!{name}", f"{name} == true", f"{name} != true"))
    if kind in (2, 3):
        name = random.choice(list(NUMBERS)[: 2 if plain else 4])
        constant = random.choice(NUMBERS[name])
    elif kind == 4:
        return step(random)
    elif plain or kind < 10:
        name = random.choice([name for name in LENGTHS if not plain or name not in STEPS])
        constant = random.choice(LENGTHS[name])
    else:
        return _slanted(random, op)
    if not plain and random.random() < 0.1:
        return f"{name} in [{constant}, {random.choice(NUMBERS.get(name) or LENGTHS[name])}]"
    return f"{constant} {op} {name}" if random.random() < 0.2 else f"{name} {op} {constant}"


def step(random: Random) -> str:
    """Draw a comparison of what moves by steps."""
    name = random.choice(STEPS)
    return f"{name} {random.choice(ORDERS)} {random.choice(NUMBERS.get(name) or LENGTHS[name])}"


def _slanted(random: Random, op: str) -> str:
    return random.choice(
        (
            f"gap_seconds {op} ttft_seconds",
            f"idle_decode_seconds * 2.0 {op} 0.5 + gap_seconds",
            f"age_seconds - 0.25 {op} runway_seconds * 3.0",
            f"deadlines - deadline_misses {op} 3",
            f"tokens / tokens_read {op} 2",
            f"-runway_seconds {op} 0.1",
            "exact_resume == (gap_seconds > 0.25)",
        )
    )


def expression(random: Random, depth: int = 2, *, plain: bool = True) -> str:
    """Draw a condition; `plain` keeps it so that the prefilter can look at it, deadlines beside the rest only."""
    if plain and depth == 2 and random.random() < 0.35:
        rest = expression(random, 1)
        return random.choice((step(random), f"{step(random)} && ({rest})", f"({rest}) && {step(random)}"))
    kind = random.randrange(8)
    if not depth or kind < 2:
        return comparison(random, plain=plain)
    inner = [expression(random, depth - 1, plain=plain) for _ in range(random.randint(2, 3))]
    if kind < 5:
        return " && ".join(f"({one})" for one in inner)
    if kind < 7:
        return " || ".join(f"({one})" for one in inner)
    return f"!({inner[0]})"


def _action(random: Random) -> Action:
    limits = Limits(
        per_request=random.choice((None, None, 1, 2)),
        per_instance=random.choice((None, None, (1, 700 * MS), (2, 3_000 * MS))),
        in_flight=random.choice((None, None, 1, 2)),
    )
    only_if = random.choice((None, None, "exact_resume", "runway_seconds > -1.0", "tokens > 2 && gap_seconds < 0.6"))
    return Action(
        verb=random.choice(("alert", "migrate", "abort")),
        arguments=(("name", "A"),),
        mode=random.choice(("shadow", "enforce")),
        ttl_ns=random.choice((None, 300 * MS, 2_000 * MS)),
        limits=limits,
        only_if=None if only_if is None else condition(only_if, "stream"),
    )


def rule(random: Random, name: str, *, plain: bool) -> Rule:
    """Draw a rule; `plain`: one at which the prefilter can look, mostly."""
    on_missing: OnMissing = "hold" if plain else random.choice(("hold", "false", "fire"))
    resolve = expression(random, 1) if random.random() < 0.4 else None
    return Rule(
        name=name,
        group="g",
        scope="stream",
        when=condition(expression(random, plain=plain), "stream"),
        resolve_when=None if resolve is None else condition(resolve, "stream"),
        for_ns=random.choice((0, 0, 50, 100, 300)) * MS,
        keep_firing_for_ns=random.choice((0, 0, 100, 500)) * MS,
        on_missing=on_missing,
        max_fact_age_ns=random.choice((152, 1500, 1500, 60_000)) * MS,
        actions=tuple(_action(random) for _ in range(random.randint(1, 2))),
    )


def rule_set(random: Random) -> RuleSet:
    """Draw one to four rules; of most sets the prefilter can look at all of them."""
    plain = random.random() < 0.8
    return RuleSet(tuple(rule(random, f"R{at}", plain=plain) for at in range(random.randint(1, 4))))
