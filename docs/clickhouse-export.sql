-- What `otel-llm audit` needs of the OpenTelemetry Collector's table `otel_traces`, and no more.
--
--   clickhouse-client --query "$(cat clickhouse-export.sql)" > spans.jsonl && otel-llm audit spans.jsonl
--
-- Which spans: ours (their request spans and segments), and inference spans of others. Which attributes: none longer than
-- 1024 characters, so that prompts and replies stay where they are, but for arrays of token times. Times as unix ns, so
-- that no time zone is in them. Add a range of time at the end of the WHERE: it is the table's partition.
-- For Parquet write FORMAT Parquet; for all columns as they are SELECT * is read too.
SELECT
    toUnixTimestamp64Nano(Timestamp) AS Timestamp,
    TraceId,
    SpanId,
    ParentSpanId,
    SpanName,
    SpanKind,
    mapFilter((key, value) -> key = 'service.instance.id', ResourceAttributes) AS ResourceAttributes,
    mapFilter(
        (key, value) -> length(value) <= 1024
            OR key IN ('gen_ai.latency.per_token_generation_time', 'gen_ai.response.per_token_time_to_generate'),
        SpanAttributes
    ) AS SpanAttributes,
    Duration,
    StatusCode,
    arrayMap(at -> toUnixTimestamp64Nano(at), `Events.Timestamp`) AS `Events.Timestamp`,
    `Events.Name` AS `Events.Name`,
    arrayMap(said -> mapFilter((key, value) -> length(value) <= 1024, said), `Events.Attributes`) AS `Events.Attributes`
FROM otel_traces AS span
WHERE (
    SpanName = 'otel_llm.segment'
    OR arrayExists(
        key -> startsWith(key, 'gen_ai.') OR startsWith(key, 'otel_llm.') OR startsWith(key, 'llm.')
            OR startsWith(key, 'openinference.') OR startsWith(key, 'langfuse.'),
        span.SpanAttributes.keys
    )
    OR hasAny(`Events.Name`, ['gen_ai.token.generated', 'gen_ai.content.completion.chunk', 'llm.content.completion.chunk'])
)
-- AND span.Timestamp >= '2026-09-21 00:00:00' AND span.Timestamp < '2026-09-22 00:00:00'
FORMAT JSONEachRow
