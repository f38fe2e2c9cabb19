"""What several of these tests share since it takes a minute to start."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from support.integration.vllm_server import LONG_CONTEXT, TOKENS_A_CHUNK, VllmServer, together

Pair = tuple[VllmServer, VllmServer]


@pytest.fixture(scope="session")
def vllm_pairs(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, Pair]]:
    """The pairs that tests of this session ask for, by fixture; all start at once: one pair leaves two cores time."""
    folder = tmp_path_factory.mktemp("vllm")
    options = ("--enable-scale-out", *LONG_CONTEXT)
    chunks = ("--stream-interval", str(TOKENS_A_CHUNK))
    asked = {name for item in request.session.items for name in getattr(item, "fixturenames", ())}
    pairs: dict[str, Pair] = {}
    if "two_vllm" in asked:
        pairs["two_vllm"] = VllmServer(folder / "a.log"), VllmServer(folder / "b.log")
    if "recording_vllm" in asked:
        both = VllmServer(folder / "both.log", *options, plugin=True, middleware=True)
        pairs["recording_vllm"] = both, VllmServer(folder / "alone.log", *options, *chunks, plugin=True)
    with together(*(server for pair in pairs.values() for server in pair)):
        yield pairs


@pytest.fixture(scope="session")
def two_vllm(vllm_pairs: dict[str, Pair]) -> Pair:
    """Two servers of the tiny model, alike, without a plugin; a test leaves them as it found them."""
    return vllm_pairs["two_vllm"]


@pytest.fixture(scope="session")
def recording_vllm(vllm_pairs: dict[str, Pair]) -> Pair:
    """Two servers that record what they send: by the plugin and the middleware, and by the plugin alone.

    The second sends several tokens in a chunk, as a busy engine or speculative decoding does. Both may be told to abort
    requests, and have room for replies that last until they are. Tests look at the rows of their own requests only.
    """
    return vllm_pairs["recording_vllm"]
