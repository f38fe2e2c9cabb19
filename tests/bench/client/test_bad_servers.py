"""Servers that are none, that refuse, and that misbehave in the midst of a load."""

from __future__ import annotations

import socket
import ssl
import threading
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager, suppress

import pytest
from support.bench.loads import MODEL, After, answering, client_of, counted, followed, load, plan_of
from support.collector.tls_files import signed
from support.ports import free_ports
from support.sse_server import DONE, BodyEnd, Cut, Gate, Json, Raw, Reply, SseServer, chunk, usage, whole, words

from otel_llm.bench.client.http_exchange import BAD_HTTP, MOST_FRAMING_BYTES, Exchange
from otel_llm.bench.client.learning import LearningError, UnreachableError, learn
from otel_llm.bench.client.load_run import LoadRun
from otel_llm.bench.client.target import Target, TargetError
from otel_llm.bench.plan.prompts import PromptSpec
from otel_llm.instrumentation.parse.sse_chunks import api_of
from otel_llm.instrumentation.segments.token_estimate import MOST_A_CHUNK

TIMES = [0.02 * place for place in range(6)]


def _errors(run: LoadRun) -> Counter[str | None]:
    return Counter(one.error for one in run.requests)


def _learn(url: str, answer_s: float = 20.0) -> None:
    learn(Target.read(url, model=MODEL), PromptSpec(1), answer_s)


# Before the run.


@pytest.mark.parametrize(
    "url",
    [
        *("127.0.0.1:8000", "ftp://h", "http://", "http://h:99999", "http://h?x=1", "http://u@h", "http://:pw@h"),
        *("http://[::1", "http://[h]", "http://.h", f"http://{'h' * 64}", "http://\u2100.h"),
    ],
)
def test_a_text_that_is_no_url(url: str) -> None:
    with pytest.raises(TargetError, match=r"http://127\.0\.0\.1:8000"):
        Target.read(url, model=MODEL)


@pytest.mark.parametrize(
    "url",
    [
        "http://user:S3CRET@h",
        "ftp://user:S3CRET@h",
        "http://user:S3CRET@h:99999",
        "http://user:S3CRET/@h",
        "http://user:S3CRET",
        "user:S3CRET",
        "http://h/?k=S3CRET",
    ],
)
def test_a_password_in_a_url_is_not_repeated(url: str) -> None:
    with pytest.raises(TargetError) as found:
        Target.read(url, model=MODEL)
    assert "S3CRET" not in str(found.value)


@pytest.mark.parametrize("path", ["/日本", "/a b", "/a\x7f"])
def test_a_path_that_cannot_be_sent(path: str) -> None:
    with pytest.raises(TargetError, match="write a path in ASCII"):
        Target.read(f"http://h{path}", model=MODEL)


@pytest.mark.parametrize("model", ["", "\udcff", "a\nb"])
def test_a_model_that_cannot_be_named(model: str) -> None:
    with pytest.raises(TargetError, match="--model"):
        Target.read("http://h", model=model)


def test_a_host_has_the_name_that_resolvers_know() -> None:
    assert Target.read("http://bücher.example:8000", model=MODEL).address == "xn--bcher-kva.example:8000"
    assert Target.read("http://[::1]:8000/v1/", model=MODEL).url == "http://[::1]:8000/v1"


@pytest.mark.parametrize("header", [("x", "a\r\nb: c"), ("", "v"), ("x:", "v"), ("x", "é"), ("a b", "v")])
def test_a_header_that_cannot_be_sent(header: tuple[str, str]) -> None:
    with pytest.raises(TargetError, match="header"):
        Target.read("http://h", model=MODEL, headers=[header])


@pytest.mark.parametrize(
    ("url", "path"),
    [
        ("http://h:8000", "/v1/chat/completions"),
        ("http://h:8000/v1/", "/v1/chat/completions"),
        ("https://h/openai", "/openai/chat/completions"),
        ("http://h/v1/chat/completions", "/v1/chat/completions"),
    ],
)
def test_the_path_of_an_api(url: str, path: str) -> None:
    assert Target.read(url, model=MODEL).path == path


def test_the_key_is_not_shown() -> None:
    assert "sk-secret" not in repr(Target.read("http://h", model=MODEL, key="sk-secret"))


def test_nothing_listens() -> None:
    with pytest.raises(UnreachableError, match="nothing accepts a connection"):
        _learn(f"http://127.0.0.1:{free_ports(1)[0]}")


def test_no_such_host() -> None:
    with pytest.raises(UnreachableError, match="no such host"):
        _learn("http://no-such-host.invalid")


@contextmanager
def _serving(serve: Callable[[socket.socket], None]) -> Iterator[str]:
    """Hand the two connections of a first question to a server; give its address."""
    with closing(socket.create_server(("127.0.0.1", 0))) as listener:

        def accept() -> None:
            for _ in range(2):  # the first connection is a try
                connection, _ = listener.accept()
                with connection, suppress(OSError):
                    serve(connection)

        thread = threading.Thread(target=accept, daemon=True)
        thread.start()
        yield f"127.0.0.1:{listener.getsockname()[1]}"
        thread.join()


def test_a_certificate_of_an_unknown_authority() -> None:
    pair = signed()
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(pair.certificate, pair.key)

    def serve(connection: socket.socket) -> None:
        context.wrap_socket(connection, server_side=True).close()

    with _serving(serve) as address, pytest.raises(UnreachableError, match="tls"):
        _learn(f"https://{address}")


def test_a_server_that_accepts_and_is_silent() -> None:
    with closing(socket.create_server(("127.0.0.1", 0))) as listener, pytest.raises(UnreachableError, match="nothing"):
        _learn(f"http://127.0.0.1:{listener.getsockname()[1]}", 0.2)


def test_a_url_that_is_no_api() -> None:
    with answering(404, b"<html>no</html>", "text/html") as url, pytest.raises(LearningError, match="no such API"):
        _learn(url)


@pytest.mark.parametrize(
    ("begin", "more"),
    [
        (b"HTTP/1.1 200 OK\r\nX: ", b"x" * 4096),
        (b"HTTP/1.1 200 OK\r\n", b"X-Y: z\r\n" * 512),
        (b"", b"HTTP/1.1 100 Continue\r\n\r\n" * 128),
        (b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n1\r\nx\r\n0\r\nX: ", b"x" * 4096),
        (b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n5;", b"x" * 4096),
    ],
    ids=["a line", "lines", "interim", "a trailer", "an extension"],
)
def test_headers_that_do_not_end_are_given_up(begin: bytes, more: bytes) -> None:
    api = api_of("/v1/chat/completions")
    assert api is not None
    exchange = Exchange(0, 0, 0, api, b"")
    exchange.feed(0, begin)
    assert not all(exchange.feed(0, more) for _ in range(MOST_FRAMING_BYTES // len(more) + 1))
    assert exchange.reply.error == BAD_HTTP


def test_a_long_body_is_no_header() -> None:
    api = api_of("/v1/chat/completions")
    assert api is not None
    exchange = Exchange(0, 0, 0, api, b"")
    exchange.feed(0, b"HTTP/1.1 200 OK\r\nContent-Length: 99999999\r\n\r\n")
    assert all(exchange.feed(0, b"x" * 65536) for _ in range(40))


def test_a_server_of_something_else() -> None:
    def serve(connection: socket.socket) -> None:
        connection.sendall(b"SSH-2.0-OpenSSH_9.2\r\n")
        connection.recv(1 << 16)

    with _serving(serve) as address, pytest.raises(LearningError, match=r"bad_http|closed_early"):
        _learn(f"http://{address}")


@contextmanager
def _saying(answer: bytes) -> Iterator[str]:
    """Answer one request with these bytes, and close the connection; give the URL."""

    def serve(connection: socket.socket) -> None:
        if connection.recv(1 << 16):
            connection.sendall(answer)

    with _serving(serve) as address:
        yield f"http://{address}"


def test_an_answer_that_ends_with_its_connection_is_no_stream() -> None:
    old = b'HTTP/1.0 200 OK\r\nContent-Type: application/json\r\n\r\n{"object": "chat.completion"}'
    with _saying(old) as url, pytest.raises(LearningError, match="application/json instead of a stream"):
        _learn(url)


def test_where_a_redirection_leads_is_reported() -> None:
    moved = b"HTTP/1.1 307 Moved\r\nLocation: https://h/v1/chat/completions\r\nContent-Length: 0\r\n\r\n"
    reported = "status 307: it redirects to https://h/v1/chat/completions: name that URL"
    with _saying(moved) as url, pytest.raises(LearningError, match=reported):
        _learn(url)


def test_a_server_that_switches_the_protocol() -> None:
    with answering(101, b"") as url, pytest.raises(LearningError, match="101"):
        _learn(url)


def test_a_model_that_is_not_there() -> None:
    missing: dict[str, object] = {"error": {"message": "The model does not exist", "code": 404}}
    reported = "has no model 'm': The model does not exist; it has: llama, qwen"
    with answering(404, missing, models=["llama", "qwen"]) as url, pytest.raises(LearningError, match=reported):
        _learn(url)


def test_a_long_list_of_models_is_read_to_its_end() -> None:
    models = [f"{number}-{'m' * 1000}" for number in range(100)]
    with answering(404, b"{}", models=models) as url, pytest.raises(LearningError, match=r"it has: 0-mm.*, 99-mm"):
        _learn(url)


@pytest.mark.parametrize("status", [401, 403])
def test_a_key_that_is_wanted(status: int) -> None:
    reported = f"{status}: Unauthorized.*--api-key-file"
    with answering(status, {"error": {"message": "Unauthorized"}}) as url, pytest.raises(LearningError, match=reported):
        _learn(url)


def test_a_server_that_ignores_stream() -> None:
    whole_reply: dict[str, object] = {"object": "chat.completion", "choices": [{"message": {"content": "all at once"}}]}
    with answering(200, whole_reply) as url, pytest.raises(LearningError, match="ignores `stream`"):
        _learn(url)


def test_a_server_that_refuses_for_another_reason() -> None:
    reported = "status 400: context too long"
    with (
        answering(400, {"error": {"message": "context too long"}}) as url,
        pytest.raises(LearningError, match=reported),
    ):
        _learn(url)


def test_a_server_that_refuses_in_an_answer_of_endless_depth() -> None:
    with answering(400, b"[" * 60_000) as url, pytest.raises(LearningError, match="status 400"):
        _learn(url)


def _refusing(option: str, message: str) -> SseServer:
    """Return a server that refuses requests with an option, in these words."""
    return SseServer({MODEL: lambda asked: Reply(status=400, message=message) if option in asked else counted(4)})


def test_an_option_that_a_refusal_names_is_left_out() -> None:
    with _refusing("ignore_eos", "Unrecognized request argument supplied: ignore_eos") as server:
        found = learn(Target.read(server.url, model=MODEL), PromptSpec(1))
        assert found.refused == ("ignore_eos",)
        assert [("ignore_eos" in asked, "stream_options" in asked) for asked in server.requests] == [
            (True, True),
            (False, True),
            (False, True),
        ]
        assert found.token_basis == "exact"


def test_options_are_given_up_one_by_one_where_a_refusal_names_none() -> None:
    with _refusing("stream_options", "bad request") as server:
        found = learn(Target.read(server.url, model=MODEL), PromptSpec(1))
        assert found.refused == ("continuous_usage_stats", "stream_options")
        assert found.options.ignore_eos


def test_a_newer_name_of_the_length_is_used() -> None:
    message = "Unsupported parameter: 'max_tokens'. Use 'max_completion_tokens' instead."
    with _refusing("max_tokens", message) as server:
        found = learn(Target.read(server.url, model=MODEL), PromptSpec(1))
        assert found.options.length == "max_completion_tokens"
        assert found.refused == ()


def test_how_tokens_are_counted_is_learned() -> None:
    for reply, basis in ((counted(4), "exact"), (whole(4), "chunk")):
        with SseServer({MODEL: reply}) as server:
            assert learn(Target.read(server.url, model=MODEL), PromptSpec(1)).token_basis == basis


@pytest.mark.parametrize(("most", "asked_words"), [(900, [272]), (512, [272, 136]), (110, [272, 136, 68, 34])])
def test_a_small_context_is_asked_with_a_shorter_prompt(most: int, asked_words: list[int]) -> None:
    lengths = []

    def answer(asked: Json) -> Reply:
        lengths.append(len(asked["messages"][0]["content"].split()))
        tokens = 3 * lengths[-1] + 5
        if tokens > most:
            return Reply(status=400, message=f"maximum context length is {most} tokens")
        return Reply([*words(8), chunk(finish="stop"), usage(8, tokens), DONE])

    with SseServer({MODEL: answer}) as server:
        found = learn(Target.read(server.url, model=MODEL), PromptSpec(1))
    assert [one for one in lengths if one > 16] == asked_words
    assert found.refused == ()
    assert (found.lengths.words(305), found.counts_prompts) == (100, True)


def test_a_context_that_has_no_room_for_a_prompt() -> None:
    def answer(asked: Json) -> Reply:
        long = len(asked["messages"][0]["content"].split()) > 16
        return Reply(status=400, message="context too long") if long else counted(4)

    with SseServer({MODEL: answer}) as server, pytest.raises(LearningError, match="status 400: context too long"):
        _learn(server.url)


# In the midst of a load.


def test_a_server_that_closes_early() -> None:
    cut = Reply([*words(2), Cut()])
    with SseServer({MODEL: After(whole(4), cut)}) as server:
        run = load(server.url, TIMES)
    assert _errors(run) == {"closed_early": len(TIMES)}
    assert {one.outcome for one in run.requests} == {"disconnected"}
    assert all(len(one.times_ns) <= 2 for one in run.requests)


def test_a_body_that_ends_without_its_end() -> None:
    with SseServer({MODEL: After(whole(4), Reply([*words(3), BodyEnd()]))}) as server:
        run = load(server.url, TIMES)
    assert _errors(run) == {"closed_early": len(TIMES)}


@pytest.mark.parametrize("status", [429, 500, 503])
def test_requests_that_are_refused_have_failed_and_are_kept(status: int) -> None:
    with SseServer({MODEL: After(whole(4), Reply(status=status))}) as server:
        run = load(server.url, TIMES)
    assert _errors(run) == {f"http_{status}": len(TIMES)}
    assert {one.outcome for one in run.requests} == {"error"}


def test_no_usage_counts_chunks() -> None:
    with SseServer({MODEL: whole(4)}) as server:
        run = load(server.url, TIMES)
    assert _errors(run) == {None: len(TIMES)}
    assert {one.token_basis for one in run.requests} == {"chunk"}
    assert {len(one.times_ns) for one in run.requests} == {4}


def test_done_twice_ends_once() -> None:
    twice = Reply([*words(4), chunk(finish="stop"), DONE, DONE, *words(3), BodyEnd()])
    with SseServer({MODEL: twice}) as server:
        run = load(server.url, TIMES)
    assert _errors(run) == {None: len(TIMES)}
    assert {len(one.times_ns) for one in run.requests} == {4}


def test_a_server_that_hangs_is_cancelled_as_a_failure() -> None:
    gate = Gate()
    with SseServer({MODEL: After(whole(4), Reply([*words(2), gate]))}) as server, client_of(server.url) as client:
        run = client.start(plan_of(TIMES[:2]))
        while [len(one.times_ns) for one in run.requests] != [2, 2]:  # before it hangs: it may be slow till then
            run.step(0.1)
        run.drain(0.5)
        assert run.finished
        gate.open()
    assert _errors(run) == {"timeout": 2}
    assert {one.outcome for one in run.requests} == {"error"}
    assert {len(one.times_ns) for one in run.requests} == {2}


def test_a_chunk_of_ten_megabytes_has_a_bounded_number_of_tokens() -> None:
    huge = Reply([chunk({"content": "x" * 10_000_000}), chunk(finish="stop"), DONE, BodyEnd()])
    with SseServer({MODEL: After(whole(4), huge)}) as server:
        run = load(server.url, TIMES[:2])
    assert _errors(run) == {None: 2}
    assert {len(one.times_ns) for one in run.requests} == {MOST_A_CHUNK}


def test_an_event_beyond_all_measure_is_an_error() -> None:
    endless = Reply([Raw(b"data: " + b"x" * 40_000_000), chunk(finish="stop"), DONE, BodyEnd()])
    with SseServer({MODEL: After(whole(4), endless)}) as server:
        run = load(server.url, TIMES[:1])
    assert _errors(run) == {"event_too_long": 1}


def test_an_error_in_the_midst_of_a_stream() -> None:
    failing = Reply(
        [*words(2), Raw(b'data: {"error": {"message": "out of memory", "type": "server_error"}}\n\n'), DONE]
    )
    with SseServer({MODEL: After(whole(4), failing)}) as server:
        run = load(server.url, TIMES)
    assert _errors(run) == {"error_event": len(TIMES)}


def test_a_server_that_has_gone_away() -> None:
    server = SseServer({MODEL: whole(4)})
    server.__enter__()
    with client_of(server.url) as client:
        server.__exit__()
        run = followed(client.start(plan_of(TIMES)))
    assert set(_errors(run)) <= {"refused", "closed_early"}
    assert "refused" in _errors(run)
