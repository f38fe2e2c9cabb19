"""Learn about a server before the run: the options that it refuses, how it counts tokens, how long words are.

A few requests are sent one after another; none of them counts in the run.
"""

from __future__ import annotations

import asyncio
import json
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Final

from otel_llm.bench.client.http_exchange import NOT_STREAMED, Exchange
from otel_llm.bench.client.request_sender import REFUSED, TLS, UNREACHABLE, Address, Sender, addresses_of
from otel_llm.bench.client.target import RequestOptions
from otel_llm.bench.plan.prompts import PromptLengths, Prompts, PromptSpec
from otel_llm.shared.printable import printable

if TYPE_CHECKING:
    from otel_llm.bench.client.target import Target

ANSWER_S: Final = 60.0
"""How long a server may take for an answer before it counts as silent; it may load its model first."""
OUTPUT_TOKENS: Final = 8
"""Tokens that a question asks for: enough to see how they are counted."""
SHORT_WORDS: Final = 16
LONG_WORDS: Final = 272
"""Words of the two prompts by which tokens a word are learned; a model with a small context gets a shorter one."""
MOST_MODEL_BYTES: Final = 1 << 24
"""A list of models is read so far: those of routers, with descriptions, are some megabytes long."""
_REFUSALS: Final = frozenset({400, 422})
_NO_MODEL: Final = 404
_NOT_ALLOWED: Final = frozenset({401, 403})
_BUSY: Final = frozenset({429, 503})
_OPTIONS: Final = (
    ("continuous_usage", "continuous_usage_stats"),
    ("include_usage", "stream_options"),
    ("ignore_eos", "ignore_eos"),
    ("token_ids", "return_token_ids"),
)
"""Options in the order in which they are given up, with their names in a server's message."""


class LearningError(Exception):
    """The load cannot begin; the message says what the server answered, and the remedy."""


class UnreachableError(LearningError):
    """There is no server, or it is silent."""


@dataclass(frozen=True, slots=True)
class Learned:
    """What was learned.

    `address`: where the server was reached. `options`: the options that requests carry. `refused`: those that the
    server refused, by name. `token_basis`: how tokens will be counted, exact, estimated or chunk. `lengths`: tokens a
    word; `counts_prompts`: whether the server counts those of prompts.
    """

    address: Address
    options: RequestOptions
    refused: tuple[str, ...]
    token_basis: str
    lengths: PromptLengths
    counts_prompts: bool


def learn(target: Target, spec: PromptSpec, answer_s: float = ANSWER_S) -> Learned:
    """Ask the server; `spec`: of the load's prompts, whose numbers below 0 are the questions'.

    Raises:
        UnreachableError: nothing answers at the URL.
        LearningError: it is no such API, it has no such model, it wants a key, or it does not stream.
    """
    return asyncio.run(_Learning(target, spec, answer_s).learn())


class _Learning:
    """The questions to one server."""

    def __init__(self, target: Target, spec: PromptSpec, answer_s: float) -> None:
        self._target = target
        self._prompts = Prompts(replace(spec, lengths=PromptLengths(), shared_prefix=0))
        self._answer_s = answer_s
        self._number = 0
        self._options = RequestOptions()
        self._refused: list[str] = []

    async def learn(self) -> Learned:
        address = await self._address()
        self._ended: asyncio.Queue[Exchange] = asyncio.Queue()
        sender = Sender(self._target, address, self._ended.put_nowait)
        try:
            first = await self._question(sender, SHORT_WORDS)
            if first.reply.basis != "exact":
                first = await self._try_ids(sender, first)
            second, words = await self._long_question(sender)
        finally:
            await sender.close()
        counted = first.reply.reader.reported.input_tokens, second.reply.reader.reported.input_tokens
        lengths = PromptLengths() if None in counted else _fitted(*counted, words)  # type: ignore[arg-type]
        basis = second.reply.basis
        if basis != "exact" and second.reply.reader.reported.output_tokens is not None:
            basis = "estimated"
        return Learned(address, self._options, tuple(self._refused), basis, lengths, None not in counted)

    async def _address(self) -> Address:
        """Return the first address that accepts a connection."""
        target = self._target
        try:
            found = await addresses_of(target)
        except OSError as error:
            raise UnreachableError(f"{target.host}: no such host: {error.strerror or error}") from error
        why = ""
        for address in found:
            try:
                async with asyncio.timeout(self._answer_s):
                    _, writer = await asyncio.open_connection(*address)
            except OSError as error:  # a time-out is one
                why = error.strerror or str(error) or f"no answer in {self._answer_s:g} s"
                continue
            writer.close()
            return address
        raise UnreachableError(f"{target.url}: nothing accepts a connection ({why}): is the server running?")

    async def _question(self, sender: Sender, words: int) -> Exchange:
        """Ask until nothing is refused any more."""
        while True:
            exchange = await self._ask(sender, words)
            if exchange.reply.error is None:
                return exchange
            if exchange.status not in _REFUSALS or not self._give_up(exchange):
                raise await self._problem(sender, exchange)

    async def _long_question(self, sender: Sender) -> tuple[Exchange, int]:
        """Ask with a longer prompt, half as long while it is refused; return the answer and the words.

        The options are none of its reasons: the short question had them.
        """
        words = LONG_WORDS
        while True:
            exchange = await self._ask(sender, words)
            if exchange.reply.error is None:
                return exchange, words
            if exchange.status not in _REFUSALS or words // 2 <= SHORT_WORDS:
                raise await self._problem(sender, exchange)
            words //= 2

    async def _try_ids(self, sender: Sender, first: Exchange) -> Exchange:
        """Ask for token ids, if the server counts no chunk otherwise; return the answer that counts."""
        self._options = replace(self._options, token_ids=True)
        with_ids = await self._question(sender, SHORT_WORDS)
        if with_ids.reply.basis != "exact":  # ignored, or refused
            self._options = replace(self._options, token_ids=False)
            return first
        return with_ids

    async def _ask(self, sender: Sender, words: int, path: str | None = None) -> Exchange:
        self._number -= 1
        target = self._target
        if path is None:
            body = self._options.body(target, self._prompts.text(self._number, words), OUTPUT_TOKENS)
            request = target.request("POST", target.path, body)
        else:
            request = target.request("GET", path)
        exchange = sender.begin(self._number, None, request)
        if path is not None:
            exchange.most_bytes = MOST_MODEL_BYTES
        try:
            async with asyncio.timeout(self._answer_s):
                return await self._ended.get()
        except TimeoutError:
            raise UnreachableError(
                f"{target.url}: the server accepted the request and answered nothing for {self._answer_s:g} s"
            ) from None

    def _give_up(self, exchange: Exchange) -> bool:
        """Leave out one option: the one that the refusal names, else the next; return False if none is left."""
        text = bytes(exchange.body).decode("utf-8", "replace")
        if self._options.length == "max_tokens" and "max_completion_tokens" in text:
            self._options = replace(self._options, length="max_completion_tokens")
            return True
        carried = [(option, name) for option, name in _OPTIONS if getattr(self._options, option)]
        if not carried:
            return False
        option, name = next((one for one in carried if one[1] in text), carried[0])
        self._refused.append(name)
        self._options = replace(self._options, **{option: False})  # type: ignore[arg-type]
        return True

    async def _problem(self, sender: Sender, exchange: Exchange) -> LearningError:
        """Return the error of an answer."""
        target, error, status = self._target, exchange.reply.error, exchange.status
        reported = _message(bytes(exchange.body))
        if error == TLS:
            return UnreachableError(
                f"{target.url}: no connection (tls): the server speaks no TLS, or this machine does not trust its "
                "certificate; the variable SSL_CERT_FILE names a file with the certificate of its authority"
            )
        if error in (REFUSED, UNREACHABLE):
            return UnreachableError(f"{target.url}: no connection ({error})")
        if error == NOT_STREAMED:
            return LearningError(
                f"{target.url}{reported}: answered {exchange.content_type or 'no content type'} instead of a stream of "
                "events: it ignores `stream`, or it is no such API"
            )
        if status in _NOT_ALLOWED:
            return LearningError(f"{target.url}: {status}{reported}: name a file with the key: --api-key-file F")
        if status == _NO_MODEL:
            models = await self._models(sender)
            if models is None:
                return LearningError(f"{target.url}{target.path.removeprefix(target.base)}: 404{reported}: no such API")
            known = ", ".join(printable(name, 80) for name in models) or "none"
            return LearningError(f"{target.url} has no model {target.model!r}{reported}; it has: {known}")
        if status in _BUSY:
            return LearningError(
                f"{target.url}: status {status}{reported}: it is busy, or limits requests: try again later"
            )
        if exchange.location:
            return LearningError(
                f"{target.url}: status {status}: it redirects to {printable(exchange.location, 200)}: name that URL"
            )
        if status and status != 200:
            return LearningError(f"{target.url}: status {status}{reported}")
        return LearningError(f"{target.url}: the reply to a first request failed ({error}){reported}")

    async def _models(self, sender: Sender) -> list[str] | None:
        """Return the models that the server lists; None if it lists none as the API does."""
        exchange = await self._ask(sender, 0, f"{self._target.base}/models")
        try:
            listed = json.loads(bytes(exchange.body))["data"]
            return [str(one["id"]) for one in listed]
        except (ValueError, KeyError, TypeError, RecursionError):
            return None


def _fitted(short: int, long: int, words: int) -> PromptLengths:
    """Return the line through the tokens of both questions; the longer one had so many words."""
    per_word = (long - short) / (words - SHORT_WORDS)
    if per_word <= 0:  # a server that counts something else
        return PromptLengths()
    return PromptLengths(short - per_word * SHORT_WORDS, per_word)


def _message(body: bytes) -> str:
    """Return the server's own words, as `: text`, "" if it has none."""
    try:
        stated: Any = json.loads(body)
    except (ValueError, RecursionError):
        stated = body.decode("utf-8", "replace")
    for name in ("error", "message", "detail"):
        if isinstance(stated, dict) and name in stated:
            stated = stated[name]
    text = stated if isinstance(stated, str) else ""
    return f": {printable(text.strip(), 200)}" if text.strip() else ""
