"""Every name that goes on the wire: ours under `otel_llm.`, and the GenAI names we read and write.

The GenAI conventions are in development and are being renamed; this module is the only place that spells
them, so a rename is one line here.
"""

from __future__ import annotations

from typing import Final

# Ours.
SEGMENT_SPAN: Final = "otel_llm.segment"
SCOPE_NAME: Final = "otel_llm"
SLO_CLASS: Final = "otel_llm.slo.class"
OUTCOME: Final = "otel_llm.outcome"
TOKENS: Final = "otel_llm.tokens"
TOKEN_BASIS: Final = "otel_llm.token_basis"  # noqa: S105
TOKEN_RATIO_LEARNED: Final = "otel_llm.token_ratio_learned"  # noqa: S105
SEGMENTS: Final = "otel_llm.segments"
INSTANCE: Final = "otel_llm.instance"
MEASURED_AT: Final = "otel_llm.measured_at"
EXACT_RESUME: Final = "otel_llm.exact_resume"
CHOICE: Final = "otel_llm.choice"
SEGMENT_SEQ: Final = "otel_llm.segment.seq"
SEGMENT_FIRST_TOKEN: Final = "otel_llm.segment.first_token"  # noqa: S105
SEGMENT_LAST_BYTE: Final = "otel_llm.segment.last_byte_unix_nano"
"""When the newest byte of the reply was received, keep-alives and other framing included; on empty segments."""
RELAY_MIGRATIONS: Final = "otel_llm.relay.migrations"
"""How often a relay moved the request to another backend."""
RELAY_INPUT_TOKENS_ESTIMATED: Final = "otel_llm.relay.input_tokens_estimated"
"""The tokens of the prompt as a relay expected them at its arrival; `gen_ai.usage.input_tokens` has the truth."""
RELAY_LAG: Final = "otel_llm.relay.lag_seconds"
"""How long bytes of the reply waited for a relay's event loop, in all: no backend is to blame for it."""
DROPPED_SEGMENTS: Final = "otel_llm.segments.dropped"
"""Segments that this process had dropped so far (queue full, export failed); on a last segment, when not 0."""
ENGINE_PREEMPTIONS: Final = "otel_llm.engine.preemptions"
"""How often the engine took a running request back into its queue."""
ENGINE_STEPS: Final = "otel_llm.engine.steps"
"""Steps of the engine from the request's first token to its last."""
ENGINE_FIRST_STEP: Final = "otel_llm.engine.steps.first"
"""The number of the first of them: steps of one engine are numbered in a row, and later lives of it go on higher up."""
ENGINE_MIXED_STEPS: Final = "otel_llm.engine.steps.mixed"
"""Those of them in which another request's prefill ended beside a decode."""
ENGINE_BATCH_MEAN: Final = "otel_llm.engine.batch.mean"
"""Requests with a token in a step, on average over these steps."""
GPU_NAME: Final = "otel_llm.gpu.name"
GPU_COUNT: Final = "otel_llm.gpu.count"
GPU_UTILISATION: Final = "otel_llm.gpu.utilisation_ratio"
"""The share of time in which a kernel ran: the mean over the request's seconds and the devices, 0..1."""
GPU_MEMORY_USED: Final = "otel_llm.gpu.memory_used_bytes"
GPU_MEMORY_TOTAL: Final = "otel_llm.gpu.memory_total_bytes"
"""Of all devices together, at the newest sample."""

TOKEN_EVENT: Final = "token"  # noqa: S105
TOKEN_COUNT: Final = "otel_llm.token.count"  # noqa: S105
TOKEN_KIND: Final = "otel_llm.token.kind"  # noqa: S105

MIGRATED_EVENT: Final = "otel_llm.migrated"
"""On a relay's request span: another backend serves from here on."""
MIGRATED_FROM: Final = "from"
MIGRATED_TO: Final = "to"
TOKENS_CARRIED: Final = "tokens_carried"
GAP_SECONDS: Final = "gap_seconds"
MIGRATION_RULE: Final = "rule"
MIGRATION_REASON: Final = "reason"
PAUSED_EVENT: Final = "otel_llm.paused"
RESUMED_EVENT: Final = "otel_llm.resumed"
ATTEMPT_EVENT: Final = "otel_llm.attempt"
"""On a client's request span: one of the requests made for it failed, and another followed while the reader waited."""
ATTEMPT_MODEL: Final = "model"

MAX_SEGMENT_EVENTS: Final = 100
"""Token events in one segment at most: below the SDK's default of 128 a span, beyond which the oldest are dropped."""
MAX_SEGMENT_TOKENS: Final = 500
"""Tokens in one segment at most: a collector accepts so many for the bytes of the smallest segment."""
MAX_STREAM_TOKENS: Final = 1_000_000
"""Tokens of one stream at most, ten times the longest context of today: no more are recorded, nor accepted."""
MAX_CHOICES: Final = 128
"""The most choices that OpenAI's API allows; a later choice is ignored."""
FLUSH_INTERVAL_S: Final = 0.25

# GenAI semantic conventions, as packages emit them today.
GEN_AI_OPERATION_NAME: Final = "gen_ai.operation.name"
GEN_AI_PROVIDER_NAME: Final = "gen_ai.provider.name"
GEN_AI_SYSTEM: Final = "gen_ai.system"
"""The old name of the provider attribute (conventions up to 1.36)."""
GEN_AI_REQUEST_MODEL: Final = "gen_ai.request.model"
GEN_AI_REQUEST_STREAM: Final = "gen_ai.request.stream"
GEN_AI_REQUEST_CHOICE_COUNT: Final = "gen_ai.request.choice.count"
GEN_AI_REQUEST_ID: Final = "gen_ai.request.id"
"""The engine's own id of a request, under the name that vLLM and SGLang use."""
GEN_AI_RESPONSE_MODEL: Final = "gen_ai.response.model"
GEN_AI_RESPONSE_ID: Final = "gen_ai.response.id"
GEN_AI_RESPONSE_FINISH_REASONS: Final = "gen_ai.response.finish_reasons"
GEN_AI_USAGE_INPUT_TOKENS: Final = "gen_ai.usage.input_tokens"
GEN_AI_USAGE_OUTPUT_TOKENS: Final = "gen_ai.usage.output_tokens"
GEN_AI_USAGE_PROMPT_TOKENS: Final = "gen_ai.usage.prompt_tokens"
GEN_AI_USAGE_COMPLETION_TOKENS: Final = "gen_ai.usage.completion_tokens"
GEN_AI_USAGE_REASONING_TOKENS: Final = "gen_ai.usage.reasoning.output_tokens"
GEN_AI_USAGE_CACHE_READ_TOKENS: Final = "gen_ai.usage.cache_read.input_tokens"
GEN_AI_USAGE_CACHE_WRITE_TOKENS: Final = "gen_ai.usage.cache_creation.input_tokens"
GEN_AI_CONVERSATION_ID: Final = "gen_ai.conversation.id"
GEN_AI_REQUEST_REASONING_LEVEL: Final = "gen_ai.request.reasoning.level"
"""The part of the output tokens that is reasoning."""
GEN_AI_TIME_TO_FIRST_CHUNK: Final = "gen_ai.response.time_to_first_chunk"
FIRST_CHUNK_UNITS: Final = {
    "gen_ai.response.time_to_first_chunk": 1.0,
    "gen_ai.client.operation.time_to_first_chunk": 1.0,
    "ai.response.msToFirstChunk": 1e-3,
    "ai.stream.msToFirstChunk": 1e-3,
}
"""Attributes with the time to the first chunk, as instrumentations name it, and its unit in seconds."""
TIME_PER_CHUNK: Final = "gen_ai.client.operation.time_per_output_chunk"
"""A mean over the chunks of one reply: with it a span is one of inference."""

# Histograms, seconds. The names of the conventions 1.41; `renamed_attributes.NEW_METRICS` has those of later ones.
CLIENT_DURATION: Final = "gen_ai.client.operation.duration"
CLIENT_FIRST_CHUNK: Final = "gen_ai.client.operation.time_to_first_chunk"
CLIENT_OUTPUT_CHUNK: Final = "gen_ai.client.operation.time_per_output_chunk"
SERVER_DURATION: Final = "gen_ai.server.request.duration"
SERVER_FIRST_TOKEN: Final = "gen_ai.server.time_to_first_token"  # noqa: S105
SERVER_OUTPUT_TOKEN: Final = "gen_ai.server.time_per_output_token"  # noqa: S105
FIRST_TOKEN: Final = "otel_llm.time_to_first_token"  # noqa: S105
"""To the first token of any kind; a histogram, and an attribute of the request span."""
FIRST_VISIBLE: Final = "otel_llm.time_to_first_visible_token"
"""To the first token of content: what the user sees is no reasoning and no tool call."""

# What engines' own summary spans carry (vLLM, SGLang; legacy names), seconds.
GEN_AI_LATENCY_TTFT: Final = "gen_ai.latency.time_to_first_token"
GEN_AI_LATENCY_E2E: Final = "gen_ai.latency.e2e"
GEN_AI_LATENCY_QUEUE: Final = "gen_ai.latency.time_in_queue"
GEN_AI_LATENCY_PREFILL: Final = "gen_ai.latency.time_in_model_prefill"
"""From being scheduled to the first token."""
ENGINE_REQUEST_SPAN: Final = "llm_request"

# Token times as others carry them.
PER_TOKEN_GENERATION_TIME: Final = "gen_ai.latency.per_token_generation_time"  # noqa: S105
"""One offset from the span's start for each output token, seconds (semantic-conventions-genai#75)."""
PER_TOKEN_TIME_TO_GENERATE: Final = "gen_ai.response.per_token_time_to_generate"  # noqa: S105
"""What LoongSuite's conventions renamed it to."""
TOKEN_GENERATED_EVENT: Final = "gen_ai.token.generated"  # noqa: S105
"""An event for each output token (semantic-conventions-genai#75)."""
CHUNK_EVENT: Final = "gen_ai.content.completion.chunk"
"""Traceloop's event for each chunk of a streamed reply."""
OLD_CHUNK_EVENT: Final = "llm.content.completion.chunk"
"""The same before its conventions' version 0.5."""

# OpenInference and Langfuse, which have names of their own.
OPENINFERENCE_SPAN_KIND: Final = "openinference.span.kind"
OPENINFERENCE_MODEL: Final = "llm.model_name"
OPENINFERENCE_PROMPT_TOKENS: Final = "llm.token_count.prompt"
OPENINFERENCE_COMPLETION_TOKENS: Final = "llm.token_count.completion"
STATED_TIMES_MORE: Final = {"chunk": 200, "estimated": 8}
"""How many times the recorded tokens a stated total may be, by the basis that the recorder stated.

A chunk may hold a paragraph; an estimate is seldom wrong by more than the scripts of the world differ.
"""
STATED_TIMES_FEWER: Final = 8
"""How many times fewer than the recorded tokens a stated total may be."""
OUTPUT_TOKENS: Final = (
    GEN_AI_USAGE_OUTPUT_TOKENS,
    GEN_AI_USAGE_COMPLETION_TOKENS,
    OPENINFERENCE_COMPLETION_TOKENS,
)
"""The names under which spans state the tokens of a reply, reasoning included; the first one counts."""
REASONING_TOKENS: Final = (
    GEN_AI_USAGE_REASONING_TOKENS,
    "gen_ai.usage.reasoning_tokens",
    "gen_ai.usage.output_tokens.reasoning",
    "llm.usage.reasoning_tokens",
    "llm.token_count.completion_details.reasoning",
)
"""The names under which spans state the part of it that is reasoning; the first one counts."""
OPENINFERENCE_FIRST_TOKEN_EVENT: Final = "First Token Stream Event"  # noqa: S105
LANGFUSE_COMPLETION_START: Final = "langfuse.observation.completion_start_time"
LANGFUSE_MODEL: Final = "langfuse.observation.model.name"

SERVICE_NAME: Final = "service.name"
SERVICE_INSTANCE_ID: Final = "service.instance.id"
SERVER_ADDRESS: Final = "server.address"
SERVER_PORT: Final = "server.port"
ERROR_TYPE: Final = "error.type"
HTTP_ROUTE: Final = "http.route"
"""The path of an application's own endpoint, as given to the middleware: what tells endpoints apart."""

INFERENCE_OPERATIONS: Final = frozenset({"chat", "text_completion", "generate_content"})
"""`gen_ai.operation.name` of the spans that stand for one inference; embeddings and tools are not streams."""
OTHER_OPERATIONS: Final = frozenset(
    {
        *("create_agent", "embeddings", "execute_tool", "fetch_response", "invoke_agent", "invoke_workflow", "plan"),
        *("retrieval", "create_memory", "update_memory", "upsert_memory", "delete_memory", "search_memory"),
        *("create_memory_store", "delete_memory_store"),
    }
)
"""Operations that the conventions know and that are none, whatever times their spans carry."""

OUTCOMES: Final = ("completed", "cancelled", "abandoned", "disconnected", "error")
"""What a sender may say of a stream's end; `lost` is the evaluator's word alone."""
TOKEN_BASES: Final = ("exact", "chunk", "estimated")
MEASURED_AT_VALUES: Final = ("client", "relay", "server")
