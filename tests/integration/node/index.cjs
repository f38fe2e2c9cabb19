// An application that sends recorded spans with the official Node.js SDK and one of its OTLP/HTTP exporters:
//   node index.cjs json|protobuf none|gzip URL FILE
// FILE has an OTLP JSON export request on each line; each is sent as one batch. CommonJS, because the packages lie in
// a folder of their own that only NODE_PATH names.
"use strict";

const fs = require("node:fs");
const { ROOT_CONTEXT, SpanStatusCode, TraceFlags, diag, DiagConsoleLogger, DiagLogLevel, trace } = require("@opentelemetry/api");
const { resourceFromAttributes } = require("@opentelemetry/resources");
const { BasicTracerProvider, BatchSpanProcessor } = require("@opentelemetry/sdk-trace-base");

const [encoding, compression, url, file] = process.argv.slice(2);
const packages = { json: "@opentelemetry/exporter-trace-otlp-http", protobuf: "@opentelemetry/exporter-trace-otlp-proto" };
const { OTLPTraceExporter } = require(packages[encoding]);

// A double has 53 bits, a time in ns since 1970 needs 61: times are [seconds, nanoseconds] throughout.
const NS_PER_S = 1_000_000_000n;
const hrTime = (nanos) => [Number(BigInt(nanos) / NS_PER_S), Number(BigInt(nanos) % NS_PER_S)];

const valueOf = (value) => ("intValue" in value ? Number(value.intValue) : value.stringValue);
const attributesOf = (pairs = []) => Object.fromEntries(pairs.map(({ key, value }) => [key, valueOf(value)]));

const next = {};
const idGenerator = { generateTraceId: () => next.traceId, generateSpanId: () => next.spanId };

function make(tracer, span) {
  next.traceId = span.traceId;
  next.spanId = span.spanId;
  const above = { traceId: span.traceId, spanId: span.parentSpanId, traceFlags: TraceFlags.SAMPLED, isRemote: true };
  const context = span.parentSpanId ? trace.setSpanContext(ROOT_CONTEXT, above) : ROOT_CONTEXT;
  const made = tracer.startSpan(
    span.name,
    {
      kind: span.kind - 1, // the wire's 1 is the API's 0
      attributes: attributesOf(span.attributes),
      startTime: hrTime(span.startTimeUnixNano),
    },
    context,
  );
  for (const event of span.events ?? []) {
    made.addEvent(event.name, attributesOf(event.attributes), hrTime(event.timeUnixNano));
  }
  if (span.status?.code === 2) made.setStatus({ code: SpanStatusCode.ERROR });
  made.end(hrTime(span.endTimeUnixNano));
}

async function main() {
  diag.setLogger(new DiagConsoleLogger(), DiagLogLevel.WARN);
  const exporter = new OTLPTraceExporter({ url, compression });
  const provider = new BasicTracerProvider({
    resource: resourceFromAttributes({ "service.name": "rows" }),
    idGenerator,
    spanProcessors: [new BatchSpanProcessor(exporter)],
  });
  const tracer = provider.getTracer("otel_llm");
  for (const line of fs.readFileSync(file, "utf8").trimEnd().split("\n")) {
    for (const resource of JSON.parse(line).resourceSpans) {
      for (const scope of resource.scopeSpans) scope.spans.forEach((span) => make(tracer, span));
    }
    await provider.forceFlush();
  }
  await provider.shutdown();
}

main().catch((error) => {
  console.error(error);
  process.exitCode = 1;
});
