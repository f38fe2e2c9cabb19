"""Read the events of OpenAI's responses API. Keeps no content.

Events are the SDK's objects or the JSON of raw ones, see `sse_chunks.View`; they are distinguished by `type` alone.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from otel_llm.export.records import CONTENT, REASONING, TOOL
from otel_llm.instrumentation.segments.chunks import FRAMING, text_mark
from otel_llm.instrumentation.segments.stated_errors import ERROR, FAILED, error_of
from otel_llm.instrumentation.segments.statements import Statements, count_of, member
from otel_llm.instrumentation.segments.text_size import size_in

if TYPE_CHECKING:
    from collections.abc import Mapping

    from otel_llm.instrumentation.segments.chunks import Reading

TEXT: Final = "response.output_text.delta"
DELTAS: Final[Mapping[str, int]] = {
    kind_of_event: kind
    for kind, events in {
        CONTENT: (TEXT, "response.refusal.delta", "response.audio.transcript.delta"),
        REASONING: (
            "response.reasoning_text.delta",
            "response.reasoning_summary_text.delta",
            "response.reasoning.delta",  # gpt-oss under servers of an earlier draft
            "response.reasoning_summary.delta",
        ),
        TOOL: (
            "response.function_call_arguments.delta",
            "response.custom_tool_call_input.delta",
            "response.mcp_call_arguments.delta",
            "response.code_interpreter_call_code.delta",
            "response.shell_call_command.delta",
            "response.apply_patch_call_operation_diff.delta",
        ),
    }.items()
    for kind_of_event in events
}
"""Events of the model's output, and their kind. All others are framing, as is the output of a server's tool."""
COMPLETE: Final[Reading] = ((0, CONTENT, 0, True),)
"""Events of a complete reply."""
ENDS: Final = frozenset({"response.completed", "response.incomplete", FAILED, "response.cancelled"})
FAILURES: Final = frozenset({FAILED, ERROR})
FINISHES: Final = {"response.completed": "stop", FAILED: "error"}
"""Finish reasons of ends that state none."""


class ResponsesReader:
    """A reader of the events of one response.

    Events have no counts: a delta has the size of its text.
    """

    __slots__ = ("plain", "reported")

    def __init__(self) -> None:
        self.plain = True
        self.reported = Statements()

    @staticmethod
    def plain_size(event: Any) -> int:
        """Return the size of an event that is a piece of text, else 0."""
        try:
            return size_in(event.delta) if event.type == TEXT else 0
        except AttributeError:
            return 0

    def __call__(self, chunk: Any) -> Reading:
        """Return what an event carries; anything that is no event carries no token."""
        name = getattr(chunk, "type", None)
        if not isinstance(name, str):
            return FRAMING
        if (kind := DELTAS.get(name)) is not None:
            return text_mark(kind, getattr(chunk, "delta", None))
        response = getattr(chunk, "response", None)
        reported = self.reported
        if response is not None and not reported.named:
            reported.name(getattr(response, "id", None), getattr(response, "model", None))
        if name in ENDS:
            incomplete = member(getattr(response, "incomplete_details", None), "reason")
            reported.finish(0, incomplete or FINISHES.get(name))
            usage = getattr(response, "usage", None)
            reported.input_tokens = count_of(getattr(usage, "input_tokens", None))
            reported.use_cache(member(getattr(usage, "input_tokens_details", None), "cached_tokens"))
            reported.output_tokens = count_of(getattr(usage, "output_tokens", None))
            reported.reasoning_tokens = count_of(
                member(getattr(usage, "output_tokens_details", None), "reasoning_tokens")
            )
        if name in FAILURES:  # the SDK raises nothing then, the events just end
            reported.failure = error_of(chunk)
            return FRAMING
        return COMPLETE if name in ENDS else FRAMING

    def basis(self, choice: int) -> str:  # noqa: ARG002
        """Return the basis of a choice's token counts."""
        return "chunk"
