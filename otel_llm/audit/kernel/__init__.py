"""The audit's kernel: from batches of recorded streams to batches of judged requests and window totals."""

from otel_llm.audit.kernel.judge_batch import *  # noqa: F403
