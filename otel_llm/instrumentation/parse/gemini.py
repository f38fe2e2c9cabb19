"""Read the chunks of Gemini's `streamGenerateContent`, of the Developer API and of Vertex AI. Keeps no content.

Source: ai.google.dev/api/generate-content (GenerateContentResponse).
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from otel_llm.export.records import CONTENT, REASONING, TOOL
from otel_llm.instrumentation.segments.chunks import FRAMING, MAX_CHOICES, ChunkReader
from otel_llm.instrumentation.segments.statements import count_of, text_of

if TYPE_CHECKING:
    from otel_llm.instrumentation.segments.chunks import Mark, Reading


class GeminiReader(ChunkReader):
    """A reader of the chunks of one request.

    A chunk often has several tokens. `usageMetadata` has running totals, of visible text and of thoughts; where each
    chunk of the only candidate has it, the increase is the chunk's count. Otherwise a chunk counts as one token.
    Thoughts that are counted but not sent are no tokens.
    """

    __slots__ = ("_several", "_thought")

    def __init__(self) -> None:
        super().__init__()
        self._several = False  # whether there are several candidates: the totals are of all of them
        self._thought: dict[int, int] = {}  # tokens of thoughts so far, by candidate

    def __call__(self, chunk: Any) -> Reading:
        """Return what a chunk carries; anything that is no chunk carries no token."""
        said = self.said
        if said.response_id is None:
            said.response_id = text_of(getattr(chunk, "responseId", None)) or ""
            said.response_model = text_of(getattr(chunk, "modelVersion", None))
        usage = getattr(chunk, "usageMetadata", None)
        shown = count_of(getattr(usage, "candidatesTokenCount", None))
        thoughts = count_of(getattr(usage, "thoughtsTokenCount", None))
        prompt = count_of(getattr(usage, "promptTokenCount", None))
        if prompt is not None:
            said.input_tokens = prompt
        if shown is not None or thoughts is not None:
            said.output_tokens, said.reasoning_tokens = (shown or 0) + (thoughts or 0), thoughts
        candidates = getattr(chunk, "candidates", None)
        if not isinstance(candidates, list) or not candidates:
            blocked = getattr(getattr(chunk, "promptFeedback", None), "blockReason", None) is not None
            return ((0, CONTENT, 0, True),) if blocked else FRAMING
        marks: list[Mark] = []
        for candidate in candidates:
            index = count_of(getattr(candidate, "index", None)) or 0
            self._several |= index > 0 or len(candidates) > 1
            if index < MAX_CHOICES:
                marks += self._candidate(index, candidate, shown, thoughts)
        return tuple(marks)

    def _candidate(self, index: int, candidate: Any, shown: int | None, thoughts: int | None) -> list[Mark]:
        parts = getattr(getattr(candidate, "content", None), "parts", None)
        kinds = [_kind(part) for part in parts] if isinstance(parts, list) else []
        others = [kind for kind in (CONTENT, TOOL) if kind in kinds]
        marks: list[Mark] = []
        if REASONING in kinds:
            marks.append((index, REASONING, self._count(self._thought, index, thoughts, 1), False))
        if others:
            count = self._count(self._told, index, shown, len(others))
            marks += [(index, kind, 1, False) for kind in others[:-1]]
            marks.append((index, others[-1], count - len(others) + 1, False))
        if getattr(candidate, "finishReason", None) is not None:
            marks.append((index, CONTENT, 0, True))
        return marks

    def _count(self, told: dict[int, int], index: int, total: int | None, at_least: int) -> int:
        before = told.get(index, 0)
        if total is None or self._several or index in self._guessed:
            self._guessed.add(index)
            count = at_least
        else:
            count = self._difference(index, total - before, at_least)
        told[index] = before + count
        return count

    def basis(self, choice: int) -> str:
        """Return the basis of a candidate's token counts: `exact`, `chunk` or `estimated`."""
        if choice not in self._counted:
            return "chunk"
        return "estimated" if choice in self._guessed or choice in self._contradicted else "exact"


def _kind(part: Any) -> int | None:
    """Return the kind of a part, None for one that the model did not generate and for a tool's name alone."""
    if getattr(part, "text", None):
        return REASONING if getattr(part, "thought", None) is True else CONTENT
    call = getattr(part, "functionCall", None)
    if getattr(getattr(call, "args", None), "__dict__", None) or getattr(call, "partialArgs", None):
        return TOOL
    if getattr(getattr(part, "executableCode", None), "code", None):
        return TOOL
    return CONTENT if getattr(getattr(part, "inlineData", None), "data", None) else None
