"""What `import otel_llm` costs an application: time beside a bare interpreter and the SDK's, and what it pulls in.

    python benchmarks/import_time.py [--repetitions 15]

Fresh interpreters take turns; the best of each is printed, since noise only ever adds.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
import time

PROGRAMS = {
    "python alone": "pass",
    "import otel_llm": "import otel_llm",
    "otel_llm.instrument()": "import otel_llm; otel_llm.instrument(); otel_llm.uninstrument()",
    "import opentelemetry.sdk.trace": "import opentelemetry.sdk.trace",
    "import openai": "import openai",
}
HEAVY = ("numpy", "pandas", "pyarrow", "grpc", "google.protobuf", "requests", "yaml", "pydantic", "rich", "openai")


def seconds(code: str) -> float:
    started = time.perf_counter()
    subprocess.run([sys.executable, "-c", code], check=True, env={"PATH": "", "OTEL_EXPORTER_OTLP_TIMEOUT": "1"})
    return time.perf_counter() - started


def main() -> None:
    options = argparse.ArgumentParser(description="Time imports.")
    options.add_argument("--repetitions", type=int, default=15)
    repetitions = options.parse_args().repetitions
    best = dict.fromkeys(PROGRAMS, float("inf"))
    for _ in range(repetitions):
        for name, code in PROGRAMS.items():
            best[name] = min(best[name], seconds(code))
    floor = best["python alone"]
    print(f"{'':32}{'ms':>8}{'over bare python':>18}")
    for name, taken in best.items():
        print(f"{name:32}{taken * 1000:>8.1f}{(taken - floor) * 1000:>15.1f} ms")
    for code in ("import otel_llm", "import otel_llm; otel_llm.instrument(); otel_llm.uninstrument()"):
        listed = f"import sys; {code}; print(', '.join(name for name in {HEAVY!r} if name in sys.modules) or 'none')"
        shown = subprocess.run([sys.executable, "-c", listed], check=True, capture_output=True, text=True)
        print(f"heavy modules after `{code}`: {shown.stdout.strip()}")


if __name__ == "__main__":
    main()
