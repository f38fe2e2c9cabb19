"""Read the chunks of Gemini's `streamGenerateContent`, of the Developer API and of Vertex AI. Keeps no content.

Source: ai.google.dev/api/generate-content (GenerateContentResponse).
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from otel_llm.export.records import CONTENT, REASONING, TOOL
from otel_llm.instrumentation.segments.chunks import FRAMING, UNSEEN_TOKENS, ChunkReader, choice_of
from otel_llm.instrumentation.segments.statements import count_of, total_of
from otel_llm.instrumentation.segments.text_size import UNSIZED, bytes_of, size_in, size_of_json

if TYPE_CHECKING:
    from otel_llm.instrumentation.segments.chunks import ChoiceState, Mark, Reading


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
        said = self.said
        if not said.named:
            said.name(getattr(chunk, "responseId", None), getattr(chunk, "modelVersion", None))
        usage = getattr(chunk, "usageMetadata", None)
        shown = count_of(getattr(usage, "candidatesTokenCount", None))
        thoughts = count_of(getattr(usage, "thoughtsTokenCount", None))
        prompt = count_of(getattr(usage, "promptTokenCount", None))
        if prompt is not None:
            said.input_tokens = prompt
        said.use_cache(getattr(usage, "cachedContentTokenCount", None))
        if shown is not None or thoughts is not None:
            said.output_tokens, said.reasoning_tokens = total_of(shown, thoughts), thoughts
        candidates = getattr(chunk, "candidates", None)
        if not isinstance(candidates, list) or not candidates:
            blocked = getattr(getattr(chunk, "promptFeedback", None), "blockReason", None)
            return ((0, CONTENT, 0, True),) if said.finish(0, blocked) else FRAMING
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
            kind, size = _text(part)
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
            self.said.goes_on(index)
        if self.said.finish(index, getattr(candidate, "finishReason", None)):
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


def _text(part: Any) -> tuple[int, int]:
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
