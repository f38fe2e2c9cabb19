"""A reply that is cut and resumed has the text, the ids and the form of the undisturbed one, wherever it is cut."""

from __future__ import annotations

import itertools
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support.examples import examples
from support.relay.fake_model import EOS, Detokenizer, FakeModel, Json
from support.relay.resuming import Resumed, Seen, run, seen_of

GREEDY: Json = {"model": "fake", "stream": True, "temperature": 0}


def body_of(endpoint: str, words: str = "tell me", **more: Any) -> Json:
    if endpoint == "chat":
        return {**GREEDY, "messages": [{"role": "user", "content": words}], **more}
    return {**GREEDY, "prompt": words, **more}


def undisturbed(body: Json, **model: Any) -> Seen:
    return seen_of(b"".join(FakeModel(**model).chunks(body)))


def plain_usage(usage: Json | None) -> Json | None:
    """Return a usage without the details that the contract leaves out behind a splice."""
    return usage and {key: value for key, value in usage.items() if key != "prompt_tokens_details"}


def check(resumed: Resumed, whole: Seen) -> None:
    assert not resumed.lost
    seen = seen_of(resumed.data)
    assert seen.text == whole.text
    assert seen.ids == whole.ids
    assert seen.prompt_ids == whole.prompt_ids
    assert seen.finishes == whole.finishes
    assert seen.roles == whole.roles
    if not resumed.bare_finish:
        assert seen.dones == 1
        assert plain_usage(seen.usage) == plain_usage(whole.usage)
    assert seen.running == sorted(seen.running)
    assert len(seen.heads) == 1


def models_of(count: int, **model: Any) -> list[FakeModel]:
    """Return engines that differ in all that a resumption must not show."""
    return [FakeModel(prefix="abcd"[i], created=1000 + i, fingerprint=f"vllm-{i}", **model) for i in range(count)]


CASES = [
    (endpoint, ids, per_chunk, empty_delta)
    for endpoint, ids, per_chunk in itertools.product(["chat", "completions"], [False, True], [1, 2, 3, 5])
    for empty_delta in ([False, True] if endpoint == "chat" else [False])
]


@pytest.mark.parametrize(("endpoint", "ids", "per_chunk", "empty_delta"), CASES)
def test_every_cut_between_chunks(endpoint: str, ids: bool, per_chunk: int, empty_delta: bool) -> None:
    """Cut a reply after each of its chunks."""
    model = {"stream_interval": per_chunk, "empty_delta": empty_delta, "pauses": False}
    body = body_of(endpoint, max_tokens=24, ignore_eos=True, return_token_ids=ids)
    whole = undisturbed(body, **model)
    for cut in range(24 // per_chunk + 2):
        resumed = run(body, models_of(2, **model), [cut])
        check(resumed, whole)
        if not resumed.again:
            assert resumed.tokens == 24


@pytest.mark.parametrize("ending", [b"\n", b"\r\n", b"\r"])
@pytest.mark.parametrize("endpoint", ["chat", "completions"])
@pytest.mark.parametrize("ids", [False, True])
def test_every_cut_within_a_chunk(endpoint: str, ids: bool, ending: bytes) -> None:
    """Cut a reply behind each byte of some of its chunks, the line's ending and the blank line included."""
    body = body_of(endpoint, max_tokens=8, ignore_eos=True, return_token_ids=ids)
    whole = undisturbed(body, pauses=False)
    (source,) = models_of(1, pauses=False)
    sent = [len(chunk.replace(b"\n", ending)) for chunk in source.chunks({**body, "return_token_ids": True})]
    for chunk in range(len(sent) - 1):
        for torn in (1, 5, 100, *range(sent[chunk] - 6, sent[chunk])):
            check(run(body, models_of(2, pauses=False), [chunk], torn=torn, ending=ending), whole)


@settings(max_examples=examples(120))
@given(
    endpoint=st.sampled_from(["chat", "completions"]),
    words=st.text("abcdefgh é你", max_size=6),
    ids=st.booleans(),
    usage=st.sampled_from([None, {"include_usage": True}, {"include_usage": True, "continuous_usage_stats": True}]),
    intervals=st.lists(st.integers(1, 7), min_size=2, max_size=4),
    lengths=st.lists(st.integers(0, 30), min_size=3, max_size=3),
    torn=st.integers(0, 400),
    splits=st.lists(st.integers(0, 20_000), max_size=30),
    ending=st.sampled_from([b"\n", b"\r\n", b"\r"]),
    empty_delta=st.booleans(),
    pauses=st.booleans(),
    max_tokens=st.one_of(st.none(), st.integers(1, 60)),
    more=st.sampled_from([{}, {"ignore_eos": True}, {"stop_token_ids": [300, 301, 302]}, {"repetition_penalty": 1.1}]),
)
def test_any_cuts_and_splits(
    endpoint: str,
    words: str,
    ids: bool,
    usage: Json | None,
    intervals: list[int],
    lengths: list[int],
    torn: int,
    splits: list[int],
    ending: bytes,
    empty_delta: bool,
    pauses: bool,
    max_tokens: int | None,
    more: Json,
) -> None:
    """Cut a reply up to three times, anywhere, with other numbers of tokens a chunk on each engine."""
    stated = {"max_tokens": max_tokens, "stream_options": usage, "return_token_ids": ids, **more}
    body = body_of(endpoint, words, **{key: value for key, value in stated.items() if value is not None})
    model: Json = {"empty_delta": empty_delta, "pauses": pauses, "cached_tokens": True, "max_model_len": 160}
    whole = undisturbed(body, **model)
    models = models_of(len(intervals), **model)
    for one, interval in zip(models, intervals, strict=True):
        one.stream_interval = interval
    resumed = run(body, models, lengths, splits, torn, ending)
    # A special token has a name for `/detokenize`, and no text in a stream: only a text with one id is whole then.
    if not (resumed.lost and pauses and max(intervals) > 1):
        check(resumed, whole)


@settings(max_examples=examples(40))
@given(
    endpoint=st.sampled_from(["chat", "completions"]),
    intervals=st.lists(st.integers(1, 7), min_size=3, max_size=3),
    lengths=st.lists(st.integers(2, 12), min_size=2, max_size=2),
)
def test_a_sampled_reply_is_one_draw(endpoint: str, intervals: list[int], lengths: list[int]) -> None:
    """Resume on engines that draw otherwise: the text is that of the ids that were carried and drawn behind them."""
    body = body_of(endpoint, max_tokens=40, temperature=1, stream_options={"include_usage": True})
    models = models_of(3, pauses=False)
    for salt, (model, interval) in enumerate(zip(models, intervals, strict=True)):
        model.salt, model.stream_interval = salt, interval
    resumed = run(body, models, lengths)
    seen = seen_of(resumed.data)
    detokenizer = Detokenizer()
    assert seen.text == "".join(detokenizer.feed(token) for token in resumed.reply.ids)
    assert seen.finishes == ["length"] or resumed.reply.ids[-1] == EOS
    if not resumed.bare_finish:
        assert seen.usage is not None
        assert seen.usage["completion_tokens"] == len(resumed.reply.ids) <= 40
