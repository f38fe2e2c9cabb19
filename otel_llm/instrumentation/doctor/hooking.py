"""`python -m ... STACK`: hook a stack, import it and print whether the hooks fit. Sends nothing."""

from __future__ import annotations

import importlib
import json
import logging
import os
import sys

from otel_llm.instrumentation.setup import STACKS


def main(stack: str) -> None:
    """Print one line of JSON: `hooked`, `requires`."""
    from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

    for name in [name for name in os.environ if name.startswith(("OTEL_SDK_DISABLED", "OTEL_LLM_"))]:
        del os.environ[name]
    warned: list[str] = []

    def hear(record: logging.LogRecord) -> bool:
        if record.levelno >= logging.WARNING:
            warned.append(record.getMessage())
        return False

    logging.getLogger("otel_llm").addFilter(hear)
    package, module, name = STACKS[stack]
    instrumentor = getattr(importlib.import_module(module), name)()
    # The same check that the hooks make, once the package is imported.
    instrumentor.instrument(exporter=InMemorySpanExporter(), skip_dep_check=True)
    importlib.import_module(package)
    requires = list(instrumentor.instrumentation_dependencies())
    print(json.dumps({"hooked": not warned, "requires": requires}))


if __name__ == "__main__":
    main(sys.argv[1])
    sys.stdout.flush()
    os._exit(0)  # without the package's exit handlers
