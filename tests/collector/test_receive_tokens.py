from __future__ import annotations

import hmac
from pathlib import Path
from unittest import mock

import pytest

from otel_llm.config.secret_files import MAX_TOKENS, Token, read_tokens
from otel_llm.config.yaml_file import ConfigError
from otel_llm.shared.errors import UnauthenticatedError
from otel_llm.shared.web.tokens import Tokens

ONE, TWO = "first-token-of-these", "second-token+of/these=="


def written(folder: Path, text: str | bytes) -> Path:
    path = folder / "tokens"
    path.write_bytes(text.encode() if isinstance(text, str) else text)
    return path


def test_one_token_a_line(tmp_path: Path) -> None:
    path = written(tmp_path, f"# who\n\n  {ONE}  # the shop\r\n{TWO}\n")
    assert read_tokens(path) == [Token(ONE.encode()), Token(TWO.encode())]
    known = Tokens(path)
    for headers in ([f"Bearer {ONE}"], [f"bearer  {TWO} "], [f"BEARER {ONE}".encode()]):
        known.check(headers)


def test_a_line_may_name_the_tenant(tmp_path: Path) -> None:
    path = written(tmp_path, f"acme={ONE}\nzeta-2={TWO}\nacme=another-token-of-them\n")
    named = [(one.tenant, one.secret.decode()) for one in read_tokens(path)]
    assert named == [("acme", ONE), ("zeta-2", TWO), ("acme", "another-token-of-them")]
    assert Tokens(path).check([f"Bearer {TWO}"]).tenant == "zeta-2"


@pytest.mark.parametrize(
    ("line", "says"),
    [
        ("-acme=first-token-of-these", "not the name of a tenant"),
        ("a b=first-token-of-these", "not the name of a tenant"),
        (f"{'a' * 65}=first-token-of-these", "not the name of a tenant"),
        (f"acme={ONE}\nzeta={ONE}", "twice"),
    ],
)
def test_lines_that_name_no_tenant(tmp_path: Path, line: str, says: str) -> None:
    with pytest.raises(ConfigError, match=says) as refused:
        read_tokens(written(tmp_path, line))
    assert ONE not in str(refused.value)


@pytest.mark.parametrize(
    "headers",
    [
        [],
        [""],
        ["Bearer"],
        ["Bearer "],
        [f"Bearer{ONE}"],
        [ONE],
        [f"Basic {ONE}"],
        [f"Bearer {ONE[:-1]}"],
        [f"Bearer {ONE}x"],
        [f"Bearer {ONE}", f"Bearer {ONE}"],
        [f"Bearer {ONE}, Bearer {ONE}"],
        ["Bearer \ud800"],
        [b"Bearer \xff"],
        ["Bearer " + "x" * 100_000],
    ],
)
def test_what_is_no_known_token(tmp_path: Path, headers: list[str | bytes]) -> None:
    known = Tokens(written(tmp_path, ONE))
    with pytest.raises(UnauthenticatedError) as raised:
        known.check(headers)
    assert ONE[:-1] not in str(raised.value)


@pytest.mark.parametrize("given", [ONE, TWO, "neither-of-both-of-them"])
def test_every_token_is_compared_in_constant_time(tmp_path: Path, given: str) -> None:
    """Whatever is given, all are compared, at one length, by the one function that is made for it."""
    known = Tokens(written(tmp_path, f"{ONE}\n{TWO}\n"))
    with mock.patch("hmac.compare_digest", side_effect=hmac.compare_digest) as compare:
        try:
            known.check([f"Bearer {given}"])
        except UnauthenticatedError:
            assert given not in (ONE, TWO)
    assert [len(value) for call in compare.call_args_list for value in call.args] == [32] * 4


@pytest.mark.parametrize(
    ("text", "line", "says"),
    [
        ("", None, "no token"),
        ("# nothing\n\n", None, "no token"),
        (f"{ONE}\nsecret with spaces\n", 2, "not a bearer token"),
        (f"{ONE}\nshort\n", 2, "16 to 1024 characters, not 5"),
        ("x" * 1025, 1, "16 to 1024 characters, not 1025"),
        (b"\xff\xfe" * 20, None, "not UTF-8"),
        ("\n".join(f"{ONE}-{number}" for number in range(MAX_TOKENS + 1)), None, f"more than {MAX_TOKENS}"),
        ("x" * 70_000, None, "more than 64 KiB"),
    ],
    ids=["empty", "comments", "spaces", "short", "long", "not text", "many", "large"],
)
def test_a_file_that_is_wrong(tmp_path: Path, text: str | bytes, line: int | None, says: str) -> None:
    path = written(tmp_path, text)
    with pytest.raises(ConfigError, match=says) as raised:
        Tokens(path)
    assert (raised.value.file, raised.value.line) == (str(path), line)
    for secret in ("spaces", "short", ONE):
        assert secret not in str(raised.value)


def test_a_reload_is_all_or_nothing(tmp_path: Path) -> None:
    path = written(tmp_path, ONE)
    known = Tokens(path)
    for wrong in ("", f"{TWO}\nno token\n"):
        path.write_text(wrong)
        with pytest.raises(ConfigError):
            known.reload()
        known.check([f"Bearer {ONE}"])
    path.write_text(TWO)
    assert known.reload() == 1
    known.check([f"Bearer {TWO}"])
    with pytest.raises(UnauthenticatedError):
        known.check([f"Bearer {ONE}"])
