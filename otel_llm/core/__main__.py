"""`python -m otel_llm.core`: compiles the kernels in advance, in the set-up of a machine or an image."""

from __future__ import annotations

import sys

from otel_llm.core.compiling.mode import ModeError


def main() -> int:
    """Return 0 if later processes find the kernels or need none, 1 if they cannot be cached, 2 for a wrong mode."""
    try:
        from otel_llm.core import kernel
        from otel_llm.core.compiling import warm
    except ModeError as wrong:
        print(f"Error: {wrong}", file=sys.stderr)
        return 2
    warm.prepare(print)
    if kernel.PLAIN is not None:
        print(f"the kernels run as plain Python: {kernel.PLAIN}")
        return 0
    from otel_llm.core.compiling.jit import kernel_cache

    cache = kernel_cache()
    if cache.path is None:
        return 1
    print(f"the kernels are in {cache.path}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
