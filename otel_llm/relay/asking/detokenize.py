"""Ask a backend for the text of token ids."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Final

import aiohttp

from otel_llm.relay.asking.run import OK
from otel_llm.relay.backends.upstream import TRY_ELSEWHERE, UpstreamError, read_some
from otel_llm.relay.seam import resume

if TYPE_CHECKING:
    from multidict import CIMultiDict

    from otel_llm.relay.backends.backend import Backend
    from otel_llm.relay.backends.pool import Pool

MOST_BYTES: Final = 2**20


async def text_of_ids(pool: Pool, backend: Backend, path: str, headers: CIMultiDict[str], body: bytes) -> str | None:
    """Return a backend's text for the ids in a body, None where it has none; `path`: that of the API, without `/v1`.

    Raises UpstreamError where it does not answer, which says nothing about the ids.
    """
    try:
        async with asyncio.timeout(pool.settings.failover.detokenize_s):
            response = await pool.upstream.open(backend, "POST", path + resume.DETOKENIZE_PATH, headers, body)
            text = b""
            try:
                while len(text) < MOST_BYTES and (data := await read_some(response)):
                    text += data
            finally:
                response.close()
    except TimeoutError:
        raise UpstreamError("silent") from None
    except (aiohttp.ClientError, OSError) as problem:
        raise UpstreamError("broken") from problem
    if response.status in TRY_ELSEWHERE:
        raise UpstreamError(str(response.status))
    return resume.detokenized(text) if response.status == OK else None
