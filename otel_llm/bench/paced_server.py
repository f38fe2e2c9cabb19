"""Moved to `otel_llm.demo.paced_server`; this name keeps working."""

from otel_llm.demo.paced_server import *  # noqa: F403

if __name__ == "__main__":
    main()  # noqa: F405
