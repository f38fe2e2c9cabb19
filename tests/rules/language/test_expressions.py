"""The expression language: what it accepts, and that every refusal points at the place and says what to write."""

from __future__ import annotations

import math
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from otel_llm.rules.language.arithmetic import Undefined
from otel_llm.rules.language.compile import compile_expression
from otel_llm.rules.language.condition import canonical
from otel_llm.rules.language.facts import STREAM_FACTS, in_scope
from otel_llm.rules.language.parser import MAX_CHARACTERS, MAX_DEPTH
from otel_llm.rules.language.tokens import ExpressionError
from otel_llm.rules.language.types import Typed, check

FACTS = in_scope("stream")


def value(text: str, **facts: Any) -> Any:
    program = compile_expression(check(text, FACTS, None))
    return program.run(*(facts[name] for name in program.facts))


def refusal(text: str) -> ExpressionError:
    with pytest.raises(ExpressionError) as caught:
        check(text, FACTS)
    return caught.value


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("1 + 2 * 3 == 7", True),
        ("-2 - -3 == 1 && 7 / 2 == 3 && -7 / 2 == -3", True),
        ("(1 + 2) * 3 == 9", True),
        ("10 - 4 - 3 == 3 && 100 / 10 / 5 == 2", True),
        ("1 < 2 == true", True),
        ("true || false && false", True),
        ("!(true || false) || !false", True),
        ("1.5e1 == 15.0 && .5 == 0.5 && 2E-1 == 0.2", True),
        ("\"a\\x41\" == 'aA' && \"it's\" == 'it\\'s'", True),
        ("'b' in ['a', 'b'] && !(3 in [1, 2])", True),
        ("'a' < 'b' && 'Z' < 'a' && '' < 'a'", True),
        ("1.0 / 3.0 > 0.3333", True),
    ],
)
def test_constants_are_computed_at_load(text: str, expected: bool) -> None:
    typed = check(text, FACTS)
    assert typed.op == "literal"
    assert typed.value is expected


def test_facts_are_used_once_each_in_order_of_appearance() -> None:
    program = compile_expression(check("gap_seconds > 0.5 && (tokens > 3 || gap_seconds < age_seconds)", FACTS))
    assert program.facts == ("gap_seconds", "tokens", "age_seconds")
    assert program.run(0.6, 0, 1.0) is True
    assert program.run(0.6, 0, 0.5) is False


def test_ints_without_a_value() -> None:
    for text in ("tokens / deadlines > 0", "tokens * 4611686018427387904 > 0", "-9223372036854775807 - tokens < 0"):
        with pytest.raises(Undefined):
            value(text, tokens=2, deadlines=0)
    # As in CEL, what decides outweighs what has no value, on either side.
    assert value("tokens / deadlines > 0 || tokens == 2", tokens=2, deadlines=0) is True
    assert value("tokens / deadlines > 0 && tokens == 3", tokens=2, deadlines=0) is False


def test_doubles_divided_by_zero() -> None:
    assert value("gap_seconds / idle_seconds > 1e300", gap_seconds=1.0, idle_seconds=0.0) is True
    assert value("gap_seconds / idle_seconds < -1e300", gap_seconds=1.0, idle_seconds=-0.0) is True
    assert value("gap_seconds / idle_seconds", gap_seconds=0.0, idle_seconds=0.0) != 0.0
    assert math.isnan(value("gap_seconds / idle_seconds", gap_seconds=math.nan, idle_seconds=1.0))


REFUSED = [
    # text, where, message, advice
    ("gap_secnds > 0.5", (0, 10), "unknown fact `gap_secnds`", "did you mean `gap_seconds`?"),
    ("True", (0, 4), "unknown fact `True`", "did you mean `true`?"),
    ("null == null", (0, 4), "unknown fact `null`", "known: slo_class"),
    ("burn_rate_5m > 1.0", (0, 12), "`burn_rate_5m` is no fact of this scope", "scope instance or class"),
    ("gap_seconds > 1", (14, 15), "int and double do not mix: `1` is int, `gap_seconds` is double", "write `1.0`"),
    ("tokens > 5.0", (9, 12), "int and double do not mix: `tokens` is int, `5.0` is double", "write `5`"),
    ("tokens > 5.5", (9, 12), "int and double do not mix", "nothing converts"),
    ("tokens > gap_seconds", (9, 20), "int and double do not mix", "nothing converts"),
    ("gap_seconds in [1, 2]", (16, 17), "int and double do not mix", "write `1.0`"),
    ("slo_class > 0.5", (12, 15), "`>` of string and double", "both sides have one type"),
    ("slo_class == chat", (13, 17), "unknown fact `chat`", "known:"),
    ("exact_resume < true", (0, 19), "`<` of two values of type bool", "no order"),
    ("slo_class + 'x' == 'y'", (0, 15), "`+` of two values of type string", "only numbers"),
    ("-slo_class == 'x'", (0, 10), "`-` of a string", "negate a number"),
    ("!tokens", (1, 7), "`!` needs conditions, `tokens` is int", "compare `tokens`"),
    ("exact_resume && tokens", (16, 22), "`&&` needs conditions, `tokens` is int", "compare"),
    ("tokens", (0, 6), "the expression is int, a condition is bool", "compare it"),
    ("gap_seconds = 0.5", (12, 13), "unexpected `=`", "compare with `==`"),
    ("exact_resume & true", (13, 14), "unexpected `&`", "write `&&`"),
    ("exact_resume | true", (13, 14), "unexpected `|`", "write `||`"),
    ("exact_resume and true", (13, 16), "unexpected `and`", "write `&&`"),
    ("exact_resume or true", (13, 15), "unexpected `or`", "write `||`"),
    ("not exact_resume", (0, 3), "unexpected `not`", "write `!`"),
    ("tokens % 2 == 0", (7, 8), "unexpected `%`", "no remainder"),
    ("exact_resume ? true : false", (13, 14), "unexpected `?`", "two rules"),
    ("size(model) > 3", (0, 4), "`size(` is a call", "no functions"),
    ("tokens(3)", (0, 6), "`tokens(` is a call", "no functions"),
    ("stream.tokens > 3", (6, 7), "unexpected `.`", "no fields"),
    ("model[0] == 'a'", (5, 6), "unexpected `[`", "no indexing"),
    ("[1, 2] == [1, 2]", (0, 1), "unexpected list", "after `in`"),
    ("tokens in 5", (10, 11), "a list is expected after `in`", "in [`a`".replace("`a`", '"a"')),
    ("tokens in []", (11, 12), "the list is empty", "at least one"),
    ("tokens in [1,]", (13, 14), "unexpected `]`", "a value is expected"),
    ("tokens in [1, 2", (15, 16), "the end where `]` is expected", "`[` is not closed"),
    ("(tokens > 1", (11, 12), "the end where `)` is expected", "`(` is not closed"),
    ("tokens > 1)", (10, 11), "unexpected `)`", "operator is expected"),
    ("tokens >", (8, 9), "the expression ends where a value is expected", "name a fact"),
    ("", (0, 1), "the expression ends where a value is expected", "name a fact"),
    ("tokens > > 1", (9, 10), "unexpected `>`", "a value is expected"),
    ("tokens > 1 tokens", (11, 17), "unexpected `tokens`", "an operator is expected"),
    ("gap_seconds > 500ms", (14, 19), "`500ms` is not a number", "seconds as a double"),
    ("tokens > 0x10", (9, 13), "`0x10` is not a number", "decimal"),
    ("tokens > 10u", (9, 12), "`10u` is not a number", "no unit suffixes"),
    ("gap_seconds > 1.", (14, 16), "`1.` is not a number", "write `1.0`"),
    ("gap_seconds > 1e999", (14, 19), "`1e999` is beyond the range of a double", "finite"),
    ("gap_seconds > 1.0 / 0.0", (14, 23), "this constant is inf", "finite"),
    ("gap_seconds > 0.0 / 0.0", (14, 23), "this constant is nan", "finite"),
    ("gap_seconds > 1e308 * 10.0", (14, 26), "this constant is inf", "finite"),
    ("tokens > 1 / 0", (9, 14), "this constant has no value: division by zero", "finite"),
    ("tokens > 9223372036854775807 + 1", (9, 32), "this constant has no value: an int beyond 64 bits", "finite"),
    ("tokens > 9223372036854775808", (9, 28), "`9223372036854775808` is beyond the range of an int", "64 bits"),
    ("tokens > --9223372036854775808", (11, 30), "beyond the range of an int", "64 bits"),
    ("tokens > " + "9" * 4000, (9, 4009), "beyond the range of an int", "64 bits"),
    ("model == 'a", (9, 11), "the string has no end", "close it with '"),
    ("model == 'a\n'", (9, 13), "the string has no end", "same line"),
    ("model == 'a\\q'", (11, 13), "`\\q` is not an escape", "backslash"),
    ("model == '\\ud800'", (10, 16), "`\\ud800` is not a character", "itself"),
    ("model == '\\x4'", (10, 13), "`\\x4` is not an escape", "backslash"),
    ("model == '''a'''", (9, 12), "triple-quoted", "one pair"),
    ("model == r'a'", (9, 10), "r-strings", "plain string"),
    ("model == “a”", (9, 10), "unexpected `“`", "quote a string"),
    ("tokens\u00a0> 1", (6, 7), "unexpected character U+00A0", "ordinary space"),
    ("tokens > 1 // many", (11, 13), "no comments", "YAML"),
    ("${tokens} > 1", (0, 1), "unexpected `$`", "templates"),
    ("tokens ≥ 1", (7, 8), "unexpected `≥`", "write `>=`"),
    ("gap_seconds > −1.0", (14, 15), "unexpected `−`", "write `-`"),
    ("().__class__", (2, 3), "unexpected `.`", "no fields"),
    ("__import__('os')", (0, 10), "`__import__(` is a call", "no functions"),
    ("(" * 65 + "true" + ")" * 65, (64, 65), "nested deeper than 64", "split"),
    ("!" * 3000 + "true", (64, 65), "nested deeper than 64", "split"),
    (" + ".join(["tokens"] * 66) + " > 0", (574, 575), "nested deeper than 64", "split"),
    ("tokens > 0 && " * 300 + "true", (4096, 4204), "4204 characters, at most 4096", "split"),
]  # fmt: skip


@pytest.mark.parametrize(("text", "position", "message", "advice"), REFUSED, ids=[one[0][:30] for one in REFUSED])
def test_refusals(text: str, position: tuple[int, int], message: str, advice: str) -> None:
    error = refusal(text)
    assert message in error.message
    assert advice in error.advice
    assert (error.start, error.end) == position


def test_the_bounds_are_inside_what_is_allowed() -> None:
    assert MAX_CHARACTERS == 4096
    assert MAX_DEPTH == 64
    check("(" * 64 + "true" + ")" * 64, FACTS)
    check(" + ".join(["tokens"] * 63) + " > 0", FACTS)
    chain = " && ".join(["tokens > 0"] * 292)
    check(chain + " " * (4096 - len(chain)), FACTS)


def test_a_chain_of_conditions_is_not_deep() -> None:
    text = " || ".join(["tokens==1"] * 300)
    assert value(text, tokens=1) is True
    assert value(text, tokens=2) is False


def outcome(text: str) -> Typed | ExpressionError:
    try:
        return check(text, FACTS, None)
    except ExpressionError as error:
        return error


@given(st.text(max_size=60))
@example("tokens\x00> 1")
@example("\ud800")
def test_any_text_is_an_expression_or_refused(text: str) -> None:
    found = outcome(text)
    assert isinstance(found, Typed) or (0 <= found.start < found.end and found.message and found.advice)


PIECES = ["tokens", "gap_seconds", "model", "exact_resume", "true", "1", "2.5", '"a"', "'", "(", ")", "[", "]", ","]
PIECES += ["in", "&&", "||", "!", "==", "<", ">=", "+", "-", "*", "/", " ", "\n", "\\", "9223372036854775808"]


@given(st.lists(st.sampled_from(PIECES), max_size=14).map(" ".join))
def test_any_tokens_are_an_expression_or_refused(text: str) -> None:
    found = outcome(text)
    if isinstance(found, Typed):
        again = outcome(canonical(found))
        assert isinstance(again, Typed)
        assert canonical(again) == canonical(found)
    else:
        assert found.start <= len(text)


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ("tokens>5&&model=='a'", '( tokens > 5 ) && (model == "a")'),
        ("gap_seconds > 0.50", "gap_seconds > 5e-1"),
        ("gap_seconds > 2.0 * 0.25", "gap_seconds > 0.5"),
        ("tokens in [1,2]", "tokens in [ 1, 2 ]"),
        ("!(exact_resume)", "! exact_resume"),
        ("model == '\\x61'", "model == 'a'"),
    ],
)
def test_one_meaning_has_one_canonical_form(one: str, other: str) -> None:
    assert canonical(check(one, FACTS)) == canonical(check(other, FACTS))


def test_other_meanings_have_other_canonical_forms() -> None:
    texts = ["tokens > 5", "tokens >= 5", "5 > tokens", "-tokens > 5", "tokens - 5 > 0", "tokens > -5", "tokens in [5]"]
    assert len({canonical(check(text, FACTS)) for text in texts}) == len(texts)
    assert canonical(check("tokens - (1 - 2) > 0", FACTS)) == "((tokens - -1) > 0)"


def test_no_fact_is_named_as_something_of_python() -> None:
    # Facts become parameters with a prefix, but a name such as `in` or `true` could never be reached.
    assert not {fact.name for fact in STREAM_FACTS} & {"in", "true", "false", "and", "or", "not"}
