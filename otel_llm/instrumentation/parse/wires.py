"""The client's wires: the API of a path, the provider of a host, the readers of Cohere, Gemini, Ollama and TGI."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from otel_llm.export.records import CONTENT, REASONING, TOOL
from otel_llm.instrumentation.parse.json_bodies import JsonArray, JsonLines
from otel_llm.instrumentation.parse.sse_chunks import APIS, COMPLETIONS, SSE, Api
from otel_llm.instrumentation.segments.chunks import FRAMING, UNSEEN_TOKENS, ChunkReader, Reading, choice_of, text_mark
from otel_llm.instrumentation.segments.statements import count_of, total_of
from otel_llm.instrumentation.segments.text_size import UNSIZED, bytes_of, size_in, size_of_json

if TYPE_CHECKING:
    from otel_llm.instrumentation.segments.chunks import ChoiceState, Mark

MESSAGE_END: Final = "message-end"
COMPLETE: Final[Reading] = ((0, CONTENT, 0, True),)
"""Events of a complete reply."""


class CohereReader(ChunkReader):
    """A reader of the events of one reply: each has the size of its text. The final usage has no times of tokens.

    A tool plan is reasoning: it announces the model's next step.
    """

    __slots__ = ()

    def __init__(self) -> None:
        super().__init__()
        self.plain = True

    @staticmethod
    def plain_size(chunk: Any) -> int:  # noqa: ARG004
        """Return 0: nothing is known of an event before it is read."""
        return 0

    def __call__(self, chunk: Any) -> Reading:
        """Return what an event carries; anything that is no event carries no token."""
        reported = self.reported
        if reported.response_id is None:
            reported.name(getattr(chunk, "id", None), None)
        delta = getattr(chunk, "delta", None)
        if getattr(chunk, "type", None) == MESSAGE_END:
            tokens = getattr(getattr(delta, "usage", None), "tokens", None)
            reported.input_tokens = count_of(getattr(tokens, "input_tokens", None))
            reported.output_tokens = count_of(getattr(tokens, "output_tokens", None))
            reported.finish(0, getattr(delta, "finish_reason", None))
            return FRAMING if reported.failure else COMPLETE
        message = getattr(delta, "message", None)
        content = getattr(message, "content", None)
        function = getattr(getattr(message, "tool_calls", None), "function", None)
        return (
            text_mark(CONTENT, getattr(content, "text", None))
            or text_mark(REASONING, getattr(content, "thinking", None) or getattr(message, "tool_plan", None))
            or text_mark(TOOL, getattr(function, "arguments", None))
        )


class GeminiReader(ChunkReader):
    """A reader of the chunks of one request.

    A chunk often has several tokens. `usageMetadata` has running totals, of visible text and of thoughts; if each chunk
    of the only candidate has it, the increase is the chunk's count. Otherwise a part has the size of its text. Thoughts
    that are counted but not sent are no tokens.
    """

    __slots__ = ("_several", "_thought")

    def __init__(self) -> None:
        super().__init__()
        self._several = False  # whether there are several candidates: the totals are of all of them
        self._thought: dict[int, int] = {}  # tokens of thoughts so far, by candidate

    def __call__(self, chunk: Any) -> Reading:
        """Return what a chunk carries; anything that is no chunk carries no token."""
        reported = self.reported
        if not reported.named:
            reported.name(getattr(chunk, "responseId", None), getattr(chunk, "modelVersion", None))
        usage = getattr(chunk, "usageMetadata", None)
        shown = count_of(getattr(usage, "candidatesTokenCount", None))
        thoughts = count_of(getattr(usage, "thoughtsTokenCount", None))
        prompt = count_of(getattr(usage, "promptTokenCount", None))
        if prompt is not None:
            reported.input_tokens = prompt
        reported.use_cache(getattr(usage, "cachedContentTokenCount", None))
        if shown is not None or thoughts is not None:
            reported.output_tokens, reported.reasoning_tokens = total_of(shown, thoughts), thoughts
        candidates = getattr(chunk, "candidates", None)
        if not isinstance(candidates, list) or not candidates:
            blocked = getattr(getattr(chunk, "promptFeedback", None), "blockReason", None)
            return ((0, CONTENT, 0, True),) if reported.finish(0, blocked) else FRAMING
        marks: list[Mark] = []
        for candidate in candidates:
            index = choice_of(getattr(candidate, "index", None))
            self._several |= index != 0 or len(candidates) > 1
            if index is not None:
                marks += self._candidate(index, candidate, shown, thoughts)
        return tuple(marks)

    def _candidate(self, index: int, candidate: Any, shown: int | None, thoughts: int | None) -> list[Mark]:
        parts = getattr(getattr(candidate, "content", None), "parts", None)
        sizes = {CONTENT: 0, REASONING: 0, TOOL: 0}
        for part in parts if isinstance(parts, list) else []:
            kind, size = _part_text(part)
            sizes[kind] += size
        marks: list[Mark] = []
        one = self._choices[index]
        if thought := sizes.pop(REASONING):
            before, self._thought[index] = self._thought.get(index, 0), thoughts or 0
            count = self._count(one, before, thoughts, thought, least=1, most=bytes_of(thought))
            marks.append((index, REASONING, count, False))
        others = {kind: size for kind, size in sizes.items() if size}
        if others:
            unseen = UNSEEN_TOKENS if TOOL in others else 0  # a tool's name is counted with its arguments
            size = sum(others.values())
            before, one.tokens = one.tokens, shown or 0
            count = self._count(one, before, shown, size, least=len(others), most=bytes_of(size) + unseen)
            if count < 0:
                marks += [(index, kind, -size, False) for kind, size in others.items()]
            else:  # the count does not say to which kind each belongs
                *most, last = others
                marks += [(index, kind, 1, False) for kind in most]
                marks.append((index, last, count - len(most), False))
        if marks:
            self.reported.goes_on(index)
        if self.reported.finish(index, getattr(candidate, "finishReason", None)):
            marks.append((index, CONTENT, 0, True))
        return marks

    def _count(self, one: ChoiceState, before: int, total: int | None, size: int, *, least: int, most: int) -> int:
        if total is None or self._several or one.guessed:
            one.guessed = True
            return -size
        return one.difference(total - before, size, least, most)

    def basis(self, choice: int) -> str:
        """Return the basis of a candidate's token counts: `exact`, `chunk` or `estimated`."""
        return self._counted_basis(choice)


def _part_text(part: Any) -> tuple[int, int]:
    """Return the kind and size of a part's text, 0 for one that the model did not generate and for a tool's name."""
    if size := size_in(getattr(part, "text", None)):
        return (REASONING if getattr(part, "thought", None) is True else CONTENT), size
    call = getattr(part, "functionCall", None)
    for arguments in (getattr(call, "args", None), getattr(call, "partialArgs", None)):
        if size := size_of_json(arguments):
            return TOOL, size
    if size := size_in(getattr(getattr(part, "executableCode", None), "code", None)):
        return TOOL, size
    return CONTENT, UNSIZED if getattr(getattr(part, "inlineData", None), "data", None) else 0


class OllamaReader(ChunkReader):
    """A reader of the lines of one reply: each has the size of its text. The counts on the last line have no times."""

    __slots__ = ()

    def __call__(self, chunk: Any) -> Reading:
        """Return what a line carries; anything that is no line of a reply carries no token."""
        reported = self.reported
        if reported.response_model is None:
            reported.name(None, getattr(chunk, "model", None))
        done = getattr(chunk, "done", None) is True
        if done:
            reported.finish(0, getattr(chunk, "done_reason", None))
            done = not reported.failure
            reported.input_tokens = count_of(getattr(chunk, "prompt_eval_count", None))
            reported.output_tokens = count_of(getattr(chunk, "eval_count", None))
        message = getattr(chunk, "message", chunk)
        kind, size = _message_text(message)
        if not size:
            return ((0, CONTENT, 0, done),) if done else FRAMING
        parts = self._choices[0].parts(kind, size, _content(message))
        marks = tuple((0, part, -length, False) for part, length in parts)
        return (*marks, (0, CONTENT, 0, True)) if done else marks


def _content(reported: Any) -> Any:
    return getattr(reported, "content", None) or getattr(reported, "response", None)


def _message_text(reported: Any) -> tuple[int, int]:
    """Return the kind of a line's text and its size, 0 for none."""
    if size := size_in(_content(reported)):
        return CONTENT, size
    if size := size_in(getattr(reported, "thinking", None)):
        return REASONING, size
    calls = getattr(reported, "tool_calls", None)
    functions = [getattr(call, "function", None) for call in calls] if isinstance(calls, list) else []
    size = sum(size_of_json(getattr(function, "arguments", None)) for function in functions)
    return TOOL if size else CONTENT, size


class TgiReader(ChunkReader):
    """A reader of the events of one reply: each is exactly one token. A special one, as the end of text, is not read.

    The last event has the whole text; it has the usage if the request asked for details.
    """

    __slots__ = ()

    def __call__(self, chunk: Any) -> Reading:
        """Return what an event carries; anything that is no event carries no token."""
        token = getattr(chunk, "token", None)
        count = 0
        if token is not None:
            one = self._choices[0]
            one.counted = True
            if getattr(token, "special", None) is not True:
                count = 1 if one.believes(1) else -size_in(getattr(token, "text", None))
        finished = isinstance(getattr(chunk, "generated_text", None), str)
        if (details := getattr(chunk, "details", None)) is not None:
            self.reported.input_tokens = count_of(getattr(details, "input_length", None))
            self.reported.output_tokens = count_of(getattr(details, "generated_tokens", None))
            self.reported.finish(0, getattr(details, "finish_reason", None))
            finished &= not self.reported.failure
        return ((0, CONTENT, count, finished),) if count or finished else FRAMING

    def basis(self, choice: int) -> str:
        """Return the basis of a choice's token counts."""
        return self._counted_basis(choice)


AZURE: Final = "azure.ai.openai"
_NDJSON: Final = {"application/x-ndjson": JsonLines}

GEMINI: Final = Api(
    "generate_content",
    GeminiReader,
    provider="gcp.gemini",
    streams_by="path",
    parsers={**SSE, "application/json": JsonArray},  # events only if `alt=sse` asks for them
)
WIRES: Final[tuple[tuple[str, Api], ...]] = (
    *APIS,
    (":streamGenerateContent", GEMINI),
    ("/api/chat", Api("chat", OllamaReader, provider="ollama", streams_by="default", parsers=_NDJSON)),
    ("/api/generate", Api("text_completion", OllamaReader, provider="ollama", streams_by="default", parsers=_NDJSON)),
    ("/completion", COMPLETIONS),
    ("/v2/chat", Api("chat", CohereReader, provider="cohere")),
    ("/generate_stream", Api("text_completion", TgiReader, provider="tgi", streams_by="path")),
)
"""The end of a path, and a client's API there; the first match counts. A server's middleware uses `APIS` only."""

PROVIDERS: Final[tuple[tuple[str, str], ...]] = (
    ("api.openai.com", "openai"),
    (".openai.azure.com", AZURE),
    (".cognitiveservices.azure.com", AZURE),
    (".services.ai.azure.com", "azure.ai.inference"),
    ("api.anthropic.com", "anthropic"),
    ("generativelanguage.googleapis.com", "gcp.gemini"),
    ("aiplatform.googleapis.com", "gcp.vertex_ai"),  # a region may stand before it
    ("api.cohere.com", "cohere"),
    ("api.cohere.ai", "cohere"),
    ("api.deepseek.com", "deepseek"),
    ("api.groq.com", "groq"),
    ("api.mistral.ai", "mistral_ai"),
    ("codestral.mistral.ai", "mistral_ai"),
    ("api.perplexity.ai", "perplexity"),
    ("api.moonshot.ai", "moonshot_ai"),
    ("api.moonshot.cn", "moonshot_ai"),
    ("api.x.ai", "x_ai"),
    (".ml.cloud.ibm.com", "ibm.watsonx.ai"),
)
"""The end of a host's name, and its `gen_ai.provider.name`, if the semantic conventions have one."""
PLACES: Final = (("/openai/deployments/", AZURE), ("/publishers/google/models/", "gcp.vertex_ai"))
"""Parts of a path that only one provider has, whatever gateway is before it."""


def provider_of(default: str, host: str | None, path: str = "") -> str:
    """Return the provider of a path at a host, `default` if neither shows it."""
    name = next((provider for ending, provider in PROVIDERS if (host or "").endswith(ending)), None)
    return name or next((provider for part, provider in PLACES if part in path), default)
