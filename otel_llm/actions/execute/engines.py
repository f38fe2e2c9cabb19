"""Clients of engines and routers: vLLM and SGLang abort a request, their routers drain a worker.

The calls were read in their source, or measured: vLLM 0.32, SGLang 0.5.23, SGLang router 0.3.2, vLLM router 0.1. None
says whether a request was known: its end is looked for in the stream itself.
"""

from __future__ import annotations

import json
import re
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, Final
from urllib.parse import quote, urlsplit

from otel_llm.actions.delivery.http_request import Answer, NoAnswerError, send_request
from otel_llm.actions.execute.executor import Reply, of_answer, of_silence
from otel_llm.config.yaml_file import ConfigError
from otel_llm.shared.clock import monotonic_s

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from otel_llm.actions.execute.events import Order

VLLM_ABORT: Final = "/inference/v1/abort_requests"
"""Only if vLLM was started with `--enable-scale-out`; it answers 200 whatever the ids."""
SGLANG_ABORT: Final = "/abort_request"
SHORTEST_RID: Final = 16
"""SGLang with several tokenizers aborts every request whose rid begins with the given one."""
_ID: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.:\-]{0,254}", re.ASCII)
_NUMBERED: Final = re.compile(r"cmpl-.*-[0-9]+", re.ASCII)
_ENGINE_TIMEOUT_S: Final = 5.0


@dataclass(frozen=True, slots=True)
class _EngineClient:
    """A client of one engine; `token` is read for each try, and None if the engine wants none."""

    url: str = field(repr=False)
    token: Callable[[], str | None]
    agent: str
    timeout_s: float = _ENGINE_TIMEOUT_S
    exclusive: bool = True
    target: str = ""

    def request(self, method: str, path: str, body: Mapping[str, Any] | None, timeout_s: float) -> Answer:
        """Make one request; raises NoAnswerError, or ConfigError if the token's file cannot be used."""
        headers = {"user-agent": self.agent}
        token = self.token()
        if token is not None:
            headers["authorization"] = f"Bearer {token}"
        data = None
        if body is not None:
            headers["content-type"] = "application/json"
            data = json.dumps(body, separators=(",", ":")).encode()
        return send_request(method, self.url + path, headers, data, timeout_s)

    def request_reply(self, method: str, path: str, body: Mapping[str, Any] | None, timeout_s: float) -> Reply:
        """Make one request whose status is the whole answer; raises nothing."""
        try:
            return of_answer(self.request(method, path, body, timeout_s))
        except NoAnswerError as error:
            return of_silence(error)
        except ConfigError as error:
            return Reply("refused", f"no token to ask with: {error}")


class _Abort(_EngineClient):
    """The abort of a request; its effect shows in the stream."""

    __slots__ = ()
    in_stream = True

    def check(self, timeout_s: float) -> bool | None:  # noqa: ARG002
        """Return None: the stream shows it."""
        return None


@dataclass(frozen=True, slots=True)
class VllmAbort(_Abort):
    """The abort of a request of a vLLM server."""

    path: str = VLLM_ABORT

    def attempt(self, order: Order, now_ns: int, timeout_s: float) -> Reply:  # noqa: ARG002
        """Make one request; never with an empty list, which would abort every request of some versions."""
        request_id = order.request_id
        if request_id is None or not _ID.fullmatch(request_id):
            return Reply("refused", _NO_ID)
        return self.request_reply("POST", self.path, {"request_ids": vllm_ids(request_id)}, timeout_s)


@dataclass(frozen=True, slots=True)
class SglangAbort(_Abort):
    """The abort of a request of an SGLang server; never of all of them (`abort_all`)."""

    path: str = SGLANG_ABORT

    def attempt(self, order: Order, now_ns: int, timeout_s: float) -> Reply:  # noqa: ARG002
        """Make one request."""
        rid = order.request_id
        if rid is None or not _ID.fullmatch(rid):
            return Reply("refused", _NO_ID)
        if len(rid) < SHORTEST_RID:
            reason = f"a rid of {len(rid)} characters may be the beginning of others, which SGLang would abort too"
            return Reply("refused", f"{reason}; set rids of one length, at least {SHORTEST_RID}")
        return self.request_reply("POST", self.path, {"rid": rid}, timeout_s)


@dataclass(frozen=True, slots=True)
class RouterDrain(_EngineClient):
    """The drain of a worker by its router: it gets nothing more, and running requests go on.

    `worker`: its URL, as the router knows it. `legacy`: the vLLM router's calls, which name the worker in the query;
    else the SGLang router's, which has an id for each.
    """

    worker: str = ""
    legacy: bool = False
    in_stream: bool = False

    def attempt(self, order: Order, now_ns: int, timeout_s: float) -> Reply:  # noqa: ARG002
        """Make one request; a worker that the router does not have counts as drained."""
        worker = _plain(self.worker)
        if self.legacy:
            return self.request_reply("POST", f"/remove_worker?url={quote(worker, safe='')}", None, timeout_s)
        until_s = monotonic_s() + timeout_s
        try:
            listed = self.request("GET", "/workers", None, timeout_s)
        except NoAnswerError as error:
            return replace(of_silence(error), maybe_sent=False)  # it was not asked to drain anything
        except ConfigError as error:
            return Reply("refused", f"no token to ask with: {error}")
        if not listed.ok:
            return of_answer(listed)
        if listed.body is None:
            return Reply("again", "no list of its workers in time", late=True)
        found = _sglang_workers(listed)
        if found is None:
            return Reply("refused", "its list of workers cannot be read")
        if worker not in found:
            return Reply("done", "the router has no such worker")
        path = f"/workers/{quote(found[worker], safe='')}"
        return self.request_reply("DELETE", path, None, until_s - monotonic_s())

    def check(self, timeout_s: float) -> bool | None:
        """Return whether the router has ceased to list the worker."""
        try:
            answer = self.request("GET", "/list_workers" if self.legacy else "/workers", None, timeout_s)
        except (NoAnswerError, ConfigError):
            return False
        found = _listed(answer) if self.legacy else _sglang_workers(answer)
        return answer.ok and found is not None and _plain(self.worker) not in found


_NO_ID: Final = "its telemetry does not say by which id the engine knows it (gen_ai.request.id)"


def vllm_ids(request_id: str) -> list[str]:
    """Return the ids that vLLM may use for a request: `chatcmpl-ID` for a chat, `cmpl-ID-0` for a first prompt."""
    if request_id.startswith("chatcmpl-") or _NUMBERED.fullmatch(request_id):
        return [request_id]
    if request_id.startswith("cmpl-"):
        return [f"{request_id}-0"]
    return [f"chatcmpl-{request_id}", f"cmpl-{request_id}-0"]


def _json(answer: Answer) -> Any:
    try:
        return json.loads(answer.body or b"")
    except (ValueError, RecursionError):
        return None


def _sglang_workers(answer: Answer) -> dict[str, str] | None:
    """Return the ids of workers by URL; None if the answer is no list of them."""
    reported = _json(answer)
    workers = reported.get("workers") if isinstance(reported, dict) else None
    if not isinstance(workers, list):
        return None
    found = {}
    for one in workers:
        if isinstance(one, dict) and isinstance(one.get("url"), str):
            found[_plain(one["url"])] = str(one.get("id", one["url"]))
    return found


def _listed(answer: Answer) -> set[str] | None:
    reported = _json(answer)
    urls = reported.get("urls") if isinstance(reported, dict) else reported
    return {_plain(url) for url in urls if isinstance(url, str)} if isinstance(urls, list) else None


def _plain(url: str) -> str:
    parts = urlsplit(url)
    return f"{parts.scheme}://{parts.netloc}{parts.path}".rstrip("/")
