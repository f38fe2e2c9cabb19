"""Ask a backend for the text of token ids."""

from __future__ import annotations

from typing import TYPE_CHECKING

from otel_llm.relay.asking.run import OK
from otel_llm.relay.backends.upstream import TRY_ELSEWHERE, UpstreamError
from otel_llm.relay.seam import resume

if TYPE_CHECKING:
    from multidict import CIMultiDict

    from otel_llm.relay.backends.backend import Backend
    from otel_llm.relay.backends.pool import Pool


async def text_of_ids(pool: Pool, backend: Backend, path: str, headers: CIMultiDict[str], body: bytes) -> str | None:
    """Return a backend's text for the ids in a body, None if it has none; `path`: that of the API, without `/v1`.

    Raises UpstreamError if it does not answer, which says nothing about the ids.
    """
    path, within_s = path + resume.DETOKENIZE_PATH, pool.settings.failover.detokenize_s
    status, text = await pool.upstream.ask(backend, "POST", path, headers, body, within_s)
    if status in TRY_ELSEWHERE:
        raise UpstreamError(str(status))
    return resume.detokenized(text) if status == OK else None
