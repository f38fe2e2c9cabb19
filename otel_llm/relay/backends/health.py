"""Probe the backends: whether they are healthy, and which models they serve."""

from __future__ import annotations

import asyncio
import json
from contextlib import suppress
from typing import TYPE_CHECKING, Any, Final

from multidict import CIMultiDict

from otel_llm.relay.backends.upstream import REFUSED, TRY_ELSEWHERE, UpstreamError
from otel_llm.relay.splice.dialect import dialect_of

if TYPE_CHECKING:
    from otel_llm.relay.backends.backend import Backend
    from otel_llm.relay.backends.pool import Pool

MODELS_PATH: Final = "/v1/models"
MODELS_EVERY_S: Final = 30.0
CHAT_PATH: Final = "/v1/chat/completions"
CHAT_WITHIN_S: Final = 10.0
"""How long a backend may take to a reply of one token."""
PROBE_IDS: Final = (3, 5, 4, 3)
"""A prompt that no chat template makes."""
OK: Final = 200


class Probes:
    """The probes of all backends, a task each; those of kind `openai` are healthy until they refuse."""

    def __init__(self, pool: Pool) -> None:
        self._pool = pool
        self._tasks: list[asyncio.Task[None]] = []
        self._chats: dict[str, asyncio.Task[None]] = {}
        """The probes under way of how a backend continues a chat, by its name."""

    async def start(self) -> None:
        """Probe every backend once, then at intervals."""
        backends = list(self._pool.backends)
        await asyncio.gather(*(self._probe(backend) for backend in backends))
        self._tasks = [asyncio.create_task(self._follow(backend)) for backend in backends if backend.is_probed]

    async def stop(self) -> None:
        """Stop probing."""
        tasks = [*self._tasks, *self._chats.values()]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    async def _follow(self, backend: Backend) -> None:
        settings, loop = self._pool.settings.health, asyncio.get_running_loop()
        models_s = loop.time()
        while True:
            await asyncio.sleep(settings.interval_s)
            was = backend.healthy
            await self._see_health(backend)
            self._pool.backends.readmit(backend)
            came_back = backend.healthy and not was
            if came_back:  # as another version, perhaps
                self._pool.backends.continues(backend, chats=None)
            if backend.healthy and (came_back or not backend.models or loop.time() - models_s > MODELS_EVERY_S):
                models_s = loop.time()
                await self._see_models(backend)

    async def _probe(self, backend: Backend) -> None:
        if backend.is_probed:
            await self._see_health(backend)
            if backend.healthy:
                await self._see_models(backend)

    async def _see_health(self, backend: Backend) -> None:
        settings, backends = self._pool.settings.health, self._pool.backends
        try:
            status, _ = await self._get(backend, settings.path, settings.timeout_s + dialect_of(backend.kind).health_s)
        except UpstreamError as problem:
            if problem.reason == REFUSED:
                backends.refused(backend)
            else:
                backends.missed(backend)
            return
        if status // 100 == 2:
            backends.answered(backend)
        else:
            backends.missed(backend)

    async def _see_models(self, backend: Backend) -> None:
        """Ask a backend for its models, and then, in a task of its own, how it continues a chat."""
        with suppress(UpstreamError):
            status, body = await self._get(backend, MODELS_PATH, self._pool.settings.health.timeout_s)
            if status == OK:
                self._pool.backends.serves(backend, models_of(body))
        under_way = self._chats.get(backend.name)
        known = backend.continues_chats is not None or not dialect_of(backend.kind).native_keys
        if not known and backend.models and (under_way is None or under_way.done()):
            self._chats[backend.name] = asyncio.create_task(self._see_chat(backend))

    async def _see_chat(self, backend: Backend) -> None:
        """Note whether a backend's chat endpoint takes a prompt of ids: a chat of one token, and its echo, tell."""
        body = json.dumps(
            {
                "model": next(iter(backend.models)),
                "messages": [{"role": "user", "content": "."}],
                "max_tokens": 1,
                "temperature": 0,
                "return_token_ids": True,
                "kv_transfer_params": {"prompt_token_ids": PROBE_IDS},
            }
        ).encode()
        headers = CIMultiDict({"Content-Type": "application/json"})
        with suppress(UpstreamError):
            status, answer = await self._pool.upstream.request(backend, "POST", CHAT_PATH, headers, body, CHAT_WITHIN_S)
            if status not in TRY_ELSEWHERE:
                self._pool.backends.continues(backend, chats=status == OK and prompt_ids_of(answer) == list(PROBE_IDS))

    async def _get(self, backend: Backend, path: str, within_s: float) -> tuple[int, bytes]:
        """Return the status and the body of an answer. Raises UpstreamError."""
        return await self._pool.upstream.request(backend, "GET", path, CIMultiDict(), None, within_s)


def prompt_ids_of(body: bytes) -> object:
    """Return what an answer states as the ids of its prompt."""
    try:
        value: Any = json.loads(body)
    except (ValueError, RecursionError):
        return None
    return value.get("prompt_token_ids") if isinstance(value, dict) else None


def models_of(body: bytes) -> dict[str, int | None]:
    """Return the models that `/v1/models` lists, with `max_model_len` if it is stated; none if it is no list.

    An adapter (LoRA), which has a parent, is listed without it: a stream of one is not resumed elsewhere.
    """
    try:
        value: Any = json.loads(body)
    except (ValueError, RecursionError):
        return {}
    rows = value.get("data") if isinstance(value, dict) else None
    found: dict[str, int | None] = {}
    for row in rows if isinstance(rows, list) else ():
        if isinstance(row, dict) and isinstance(row.get("id"), str):
            length = None if row.get("parent") else row.get("max_model_len")
            found[row["id"]] = length if type(length) is int and length > 0 else None
    return found
