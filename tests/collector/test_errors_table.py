from __future__ import annotations

import grpc
import pytest
from google.rpc.error_details_pb2 import RetryInfo  # type: ignore[import-untyped]

from otel_llm.collector.receive import errors
from otel_llm.collector.receive.errors import (
    ANSWERS,
    BadRequestError,
    BusyError,
    InternalError,
    TooSlowError,
    UnsupportedContentError,
    answer,
    as_refusal,
    challenge,
    status,
)
from otel_llm.config.errors import CollectorError, StartError, TlsFileError
from otel_llm.formats.records import DecodeError
from otel_llm.journal.journal_errors import JournalError, JournalInUseError
from otel_llm.shared.errors import (
    AddressError,
    ForbiddenError,
    RefusalError,
    TooLargeError,
    UnauthenticatedError,
    UnavailableError,
)


def tree(kind: type[CollectorError], depth: int = 0) -> list[str]:
    lines = [f"{'  ' * depth}{kind.__name__}"]
    for child in kind.__subclasses__():
        lines += tree(child, depth + 1)
    return lines


def test_the_docstring_draws_the_tree() -> None:
    drawn = [
        line[:36].replace("|-", "  ").replace("`-", "  ").replace("|", " ").split("    ")
        for line in (errors.__doc__ or "").splitlines()
        if line.startswith("    ")
    ]
    names = [next(word for cell in line for word in cell.split()) for line in drawn]
    assert names == [line.strip() for line in tree(CollectorError)]


@pytest.mark.parametrize(
    ("refusal", "code", "http", "retry_s"),
    [
        (UnauthenticatedError("x"), grpc.StatusCode.UNAUTHENTICATED, 401, None),
        (ForbiddenError("x"), grpc.StatusCode.PERMISSION_DENIED, 403, None),
        (BadRequestError("x"), grpc.StatusCode.INVALID_ARGUMENT, 400, None),
        (UnsupportedContentError("x"), grpc.StatusCode.UNIMPLEMENTED, 415, None),
        (TooLargeError("x"), grpc.StatusCode.RESOURCE_EXHAUSTED, 413, None),
        (TooSlowError("x"), grpc.StatusCode.DEADLINE_EXCEEDED, 408, None),
        (BusyError("x"), grpc.StatusCode.RESOURCE_EXHAUSTED, 429, 1),
        (UnavailableError("x"), grpc.StatusCode.UNAVAILABLE, 503, 5),
        (JournalError("x"), grpc.StatusCode.UNAVAILABLE, 503, 5),
        (InternalError("x"), grpc.StatusCode.INTERNAL, 500, None),
    ],
)
def test_the_answer_to_a_client(refusal: RefusalError, code: grpc.StatusCode, http: int, retry_s: int | None) -> None:
    row = answer(refusal)
    assert (grpc.StatusCode[row.grpc], row.http) == (code, http)
    assert row.code == code.value[0]
    reported = status(refusal)
    assert (reported.code, reported.message) == (row.code, str(refusal))
    if retry_s is None:
        assert not reported.details
        return
    info = RetryInfo()
    assert reported.details[0].Unpack(info)
    assert info.retry_delay.seconds == retry_s


def test_only_what_otlp_lets_a_client_send_again_says_when() -> None:
    for kind, row in ANSWERS:
        assert bool(kind.retry_after_s) == (row.http in (429, 503))


def test_every_refusal_has_a_row() -> None:
    rows = {kind for kind, _ in ANSWERS}
    for kind in RefusalError.__subclasses__():
        assert kind in rows
    assert answer(RefusalError("x")).http == 500


def test_errors_become_refusals() -> None:
    busy = BusyError("x")
    assert as_refusal(busy) is busy
    assert isinstance(as_refusal(DecodeError("not OTLP")), BadRequestError)
    assert str(as_refusal(DecodeError("not OTLP"))) == "not OTLP"
    bug = as_refusal(KeyError("/secret/path"))
    assert isinstance(bug, InternalError)
    assert "secret" not in str(bug)


def test_a_client_is_not_told_our_reasons() -> None:
    error = JournalError("No space left on device: /var/lib/x")
    assert error.reason.startswith("No space")
    assert "var" not in str(error)


def test_errors_of_the_start_are_no_refusals() -> None:
    for kind in (AddressError, JournalInUseError, TlsFileError):
        assert issubclass(kind, StartError)
        assert not issubclass(kind, RefusalError)


def test_only_a_missing_token_is_challenged() -> None:
    for kind, row in ANSWERS:
        assert bool(challenge(kind("x"))) == (row.http == 401)
