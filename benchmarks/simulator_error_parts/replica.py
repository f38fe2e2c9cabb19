"""A vLLM of this machine's CPU with the plugin of otel-llm, whose recordings are kept phase by phase."""

from __future__ import annotations

import re
import subprocess
import sys
import time
from typing import TYPE_CHECKING, Self

from support.integration.vllm_server import VllmServer

from otel_llm.audit import load_streams
from otel_llm.audit.input.stream_batch import from_batch
from otel_llm.formats.io.journal_format import frame
from otel_llm.scheduling import load_profile
from simulator_error_parts.load import Served

if TYPE_CHECKING:
    from pathlib import Path

    from otel_llm.scheduling.profiles.profile import Profile

SETTLE_S = 2.0
"""All that was recorded of requests that are over has arrived by then."""


class Replica:
    """`vllm serve` of the tiny model with more options; a context manager."""

    def __init__(self, folder: Path, max_batch: int, max_batched_tokens: int, *options: str) -> None:
        self._folder = folder
        self._sizes = ("--max-batch", str(max_batch), "--max-batched-tokens", str(max_batched_tokens))
        self._server = VllmServer(
            folder / "vllm.log",
            *("--no-enable-prefix-caching", "--max-num-seqs", str(max_batch)),
            *("--max-num-batched-tokens", str(max_batched_tokens), *options),
            plugin=True,
            middleware=True,
        )
        self._messages: list[bytes] = []
        self._server.received.hand_on = self._messages.append

    @property
    def url(self) -> str:
        """The server's address, which ends in /v1."""
        return self._server.url

    def __enter__(self) -> Self:
        self._server.__enter__()
        return self

    def __exit__(self, *exc_info: object) -> None:
        self._server.__exit__()

    def keep(self, name: str) -> Path:
        """Write what was recorded since the last call as a journal file."""
        time.sleep(SETTLE_S)
        messages, self._messages[:] = list(self._messages), []
        path = self._folder / f"{name}.otlp"
        path.write_bytes(b"".join(frame(raw, time.time_ns()) for raw in messages))
        return path

    def fit(self, name: str, journals: list[Path]) -> Profile:
        """Fit a profile to journals with `otel-llm profile fit`, and print what it says."""
        found = re.search(r"KV cache size: ([\d,]+) tokens", self._server.log())
        assert found, "vLLM did not log the size of its KV cache"
        kv_tokens = found.group(1).replace(",", "")
        target = self._folder / f"{name}.yaml"
        command = [sys.executable, "-m", "otel_llm.cli.main", "profile", "fit", *map(str, journals)]
        subprocess.run([*command, "--out", str(target), "--kv-tokens", kv_tokens, *self._sizes], check=True)
        return load_profile(target)


def served_at_the_engine(journal: Path) -> list[Served]:
    """Return the requests of a journal as the server recorded them."""
    streams = [one for batch in load_streams(journal) for one in from_batch(batch) if one.times_ns]
    return [
        Served(one.resolved.input_tokens or 0, one.resolved.commit_ns or 0, one.events.expanded()[0]) for one in streams
    ]
