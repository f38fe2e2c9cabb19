"""What several of these tests share since it takes a minute to start."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from support.integration.vllm_server import LONG_CONTEXT, TOKENS_A_CHUNK, VllmServer, together


@pytest.fixture(scope="session")
def two_vllm(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[VllmServer, VllmServer]]:
    """Two servers of the tiny model, alike, without a plugin; a test leaves them as it found them."""
    folder = tmp_path_factory.mktemp("vllm")
    calls = ("--enable-auto-tool-choice", "--tool-call-parser", "hermes")
    first, second = VllmServer(folder / "a.log", *calls), VllmServer(folder / "b.log", *calls)
    with together(first, second):
        yield first, second


@pytest.fixture(scope="session")
def recording_vllm(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[VllmServer, VllmServer]]:
    """Two servers that record what they send: by the plugin and the middleware, and by the plugin alone.

    The second sends several tokens in a chunk, as a busy engine or speculative decoding does. Both may be told to abort
    requests, and have room for replies that last until they are. Tests look at the rows of their own requests only.
    """
    folder = tmp_path_factory.mktemp("recording-vllm")
    options = ("--enable-scale-out", *LONG_CONTEXT)
    both = VllmServer(folder / "both.log", *options, plugin=True, middleware=True)
    alone = VllmServer(folder / "alone.log", *options, "--stream-interval", str(TOKENS_A_CHUNK), plugin=True)
    with together(both, alone):
        yield both, alone
