"""Read the events of Amazon Bedrock's streams. Keeps no content.

Events are those that botocore parsed: dicts of one key. Source: botocore's model of `bedrock-runtime` (ConverseStream,
InvokeModelWithResponseStream) and the models' own pages in Bedrock's user guide.
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any, Final

from otel_llm.export.records import CONTENT, REASONING, TOOL
from otel_llm.instrumentation.parse.messages import COMPLETE, MessagesReader
from otel_llm.instrumentation.parse.sse_chunks import View
from otel_llm.instrumentation.segments.chunks import FRAMING, ChunkReader, text_mark
from otel_llm.instrumentation.segments.statements import Statements, count_of, total_of
from otel_llm.instrumentation.segments.text_size import size_in

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from otel_llm.instrumentation.segments.chunks import Reading

CONVERSE_EVENTS: Final = frozenset(
    {"messageStart", "contentBlockStart", "contentBlockDelta", "contentBlockStop", "messageStop", "metadata"}
)
MESSAGES_EVENTS: Final = ("message_start", "content_block_start", "content_block_delta", "ping")
"""Types of the first events of a reply by a model of Anthropic."""
INPUT: Final = ("inputTokens", "cacheReadInputTokens", "cacheWriteInputTokens")
"""The parts of the input: `inputTokens` alone is the part without a cache."""
METRICS: Final = "amazon-bedrock-invocationMetrics"
"""The member with Bedrock's counts in the last chunk of each invoked model."""
TEXTS: Final = ("generation", "outputText", "completion", "text")
"""The members with the text of a chunk: Llama, Titan, Anthropic's text completions, Cohere."""
LISTS: Final = ("outputs", "generations")
"""The members with a list of members with a `text`: Mistral, Cohere's oldest."""
REASONS: Final = ("stop_reason", "completionReason", "finish_reason")
"""Members with the reason once the reply is complete."""
FINISHED: Final = "is_finished"

_viewing: Final = json.JSONDecoder(object_hook=View)
_plain: Final = json.JSONDecoder()


class _Counted:
    """The common facts of a reply in both streams: the server counts no pieces, and there is a usage."""

    def __init__(self) -> None:
        self.reported = Statements()

    def basis(self, choice: int) -> str:  # noqa: ARG002
        """Return the basis of a choice's token counts."""
        return "chunk"


class ConverseReader(_Counted):
    """A reader of the events of `converse_stream`, which are also those of a Nova model that is invoked.

    A delta has the size of its text. The reply is complete with `messageStop`; the usage follows it.
    """

    def __init__(self) -> None:
        super().__init__()
        self.plain = True

    @staticmethod
    def plain_size(event: Any) -> int:
        """Return the size of an event that is a piece of text, else 0."""
        try:
            return size_in(event["contentBlockDelta"]["delta"]["text"])
        except (KeyError, TypeError):
            return 0

    def __call__(self, event: Any) -> Reading:
        """Return what an event carries; anything that is no event carries no token."""
        if (block := _dict(event).get("contentBlockDelta")) is not None:
            delta = _dict(_dict(block).get("delta"))
            thought = _dict(delta.get("reasoningContent"))
            self.reported.hides_reasoning |= "redactedContent" in thought
            return (
                text_mark(CONTENT, delta.get("text"))
                or text_mark(REASONING, thought.get("text"))
                or text_mark(TOOL, _dict(delta.get("toolUse")).get("input"))
            )
        if "metadata" in _dict(event):
            usage = _dict(_dict(event["metadata"]).get("usage"))
            self.reported.input_tokens = total_of(*(count_of(usage.get(name)) for name in INPUT))
            _, read, written = INPUT
            self.reported.use_cache(usage.get(read), usage.get(written))
            self.reported.output_tokens = count_of(usage.get("outputTokens"))
        if "messageStop" in _dict(event):
            self.reported.finish(0, _dict(event["messageStop"]).get("stopReason"))
            return FRAMING if self.reported.failure else COMPLETE
        return FRAMING


class InvokeReader(_Counted):
    """A reader of the events of `invoke_model_with_response_stream`: each has JSON of the model's own.

    The first chunk shows the model's form; `on_unknown` is called for an unknown one.
    """

    plain = False

    def __init__(self) -> None:
        super().__init__()
        self.on_unknown: Callable[[], None] | None = None
        self._model: _ChoicesReader | _TextReader | ConverseReader | MessagesReader | None = None
        self._decoder = _plain

    @staticmethod
    def plain_size(event: Any) -> int:  # noqa: ARG004
        """Return 0: a chunk must be read to know."""
        return 0

    def __call__(self, event: Any) -> Reading:
        """Return what an event carries."""
        data = _dict(_dict(event).get("chunk")).get("bytes")
        if not isinstance(data, bytes):
            return FRAMING
        try:
            chunk = self._decoder.decode(data.decode("utf-8", "replace"))
            if self._model is None:
                self._model = _reader_of(chunk)
                if self._model is not None:
                    self.reported = self._model.reported
                if isinstance(self._model, ChunkReader | MessagesReader):
                    self._decoder = _viewing
                    chunk = _viewing.decode(data.decode("utf-8", "replace"))
        except (ValueError, RecursionError):  # malformed or nested too deeply: not ours to judge
            return FRAMING
        if self._model is None:
            if self.on_unknown is not None:
                self.on_unknown()
            return FRAMING
        reading = self._model(chunk)
        metrics = chunk.get(METRICS) if isinstance(chunk, dict) else getattr(chunk, METRICS, None)
        return reading if metrics is None else self._ends(metrics, reading)

    def _ends(self, metrics: Any, reading: Reading) -> Reading:
        members = metrics.__dict__ if isinstance(metrics, View) else _dict(metrics)
        reported = self.reported
        if reported.input_tokens is None:  # the model's own statements come first
            reported.input_tokens = count_of(members.get("inputTokenCount"))
        if reported.output_tokens is None:
            reported.output_tokens = count_of(members.get("outputTokenCount"))
        return reading + COMPLETE


class _TextReader(_Counted):
    """A reader of chunks that have their text in one member, or in the first of a list."""

    def __call__(self, chunk: Any) -> Reading:
        members = _dict(chunk)
        for name in LISTS:
            if isinstance(parts := members.get(name), list) and parts:
                members = _dict(parts[0])
                break
        reading = text_mark(CONTENT, next((text for name in TEXTS if (text := members.get(name))), None))
        if reading:
            self.reported.goes_on(0)
        ends = [self.reported.finish(0, members.get(name)) for name in REASONS]
        finished = any(ends) or (members.get(FINISHED) is True and not self.reported.failure)
        return reading + COMPLETE if finished else reading


class _ChoicesReader(ChunkReader):
    """A reader of chunks of OpenAI's shape, or with `message` or `text` in place of `delta`: Mistral, DeepSeek."""

    __slots__ = ()

    def __call__(self, chunk: Any) -> Reading:
        choices = getattr(chunk, "choices", None)
        for choice in choices if isinstance(choices, list) else ():
            if isinstance(choice, View):
                members = choice.__dict__
                members.setdefault("delta", members.get("message") or View({"content": members.get("text")}))
                members.setdefault("finish_reason", members.get("stop_reason"))
        return super().__call__(chunk)


def _reader_of(chunk: Any) -> _ChoicesReader | _TextReader | ConverseReader | MessagesReader | None:
    """Return the reader for a model by its first chunk, None for an unknown one."""
    members = _dict(chunk)
    if members.keys() & CONVERSE_EVENTS:
        return ConverseReader()
    if members.get("type") in MESSAGES_EVENTS:
        return MessagesReader()
    if "choices" in members:
        return _ChoicesReader()
    return _TextReader() if members.keys() & {*TEXTS, *LISTS, FINISHED} else None


def _dict(value: Any) -> Mapping[str, Any]:
    return value if isinstance(value, dict) else {}
