"""`transformers serve`, with everything of ours switched on by one line: the middleware, and the engine's own times."""

from __future__ import annotations

import sys

import otel_llm

otel_llm.instrument()

from transformers.cli.transformers import main  # noqa: E402  what is imported first, as in an application

if __name__ == "__main__":
    sys.exit(main())
