"""`python -m otel_llm.audit.spark`, or this file by `spark-submit`: the audit of a lake, as batch or followed."""

from __future__ import annotations

import sys


def main() -> None:
    """Run the command; exit code 2 if an extra is not installed."""
    try:
        from otel_llm.audit.spark.command import audit
    except ModuleNotFoundError as missing:
        package = (missing.name or "otel_llm").split(".")[0]
        if package == "otel_llm":
            raise
        text = f"Error: `python -m otel_llm.audit.spark` needs {package}: pip install 'otel-llm[collector,spark]'"
        print(text, file=sys.stderr)
        sys.exit(2)
    audit(prog_name="python -m otel_llm.audit.spark")


if __name__ == "__main__":
    main()
