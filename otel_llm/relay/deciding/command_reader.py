"""Turn another process's action into a command: find its request and its backend, or return why it is refused."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final, get_args

from otel_llm.actions.execute.action_receiver import Response
from otel_llm.actions.execute.executors import RELAY_DOES
from otel_llm.formats.records import DEFAULT_TENANT
from otel_llm.relay.deciding.command import Command
from otel_llm.rules.files.ruleset import DEFAULT_DESTINATION, Destination
from otel_llm.shared.printable import one_line

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence

    from otel_llm.actions.execute.action_receiver import ActionRequest
    from otel_llm.formats.records import RequestKey

_DESTINATIONS: Final = frozenset(get_args(Destination))
_TRACE_BYTES, _SPAN_BYTES = 16, 8


class CommandReader:
    """The reader of actions.

    `find` returns the open requests of a span (trace id and span id): the relay's own span, or the span of the client
    above it. `is_backend` tells whether an instance is a backend of this relay.
    """

    def __init__(self, find: Callable[[RequestKey], Sequence[RequestKey]], is_backend: Callable[[str], bool]) -> None:
        self._find = find
        self._is_backend = is_backend

    def read(self, asked: ActionRequest) -> Command | Response:
        """Return the command, or the answer to an action that cannot be done here."""
        if asked.action not in RELAY_DOES:
            return _refused(f"a relay does no `{one_line(asked.action)}`")
        instance = asked.labels.get("instance", "")
        if asked.action == "drain":
            return self._command(asked, instance=instance) if self._is_backend(instance) else _no_backend(instance)
        if asked.action == "preempt":
            return self._preempt(asked, instance)
        request = self._one(asked)
        if isinstance(request, Response):
            return request
        if asked.action == "abort":
            return self._command(asked, request=request, instance=instance if self._is_backend(instance) else "")
        to = asked.arguments.get("to", DEFAULT_DESTINATION)
        if not isinstance(to, str) or to not in _DESTINATIONS:
            return _refused(f"`to` is none of {', '.join(sorted(_DESTINATIONS))}")
        return self._command(asked, {"to": to}, request=request)

    def _preempt(self, asked: ActionRequest, instance: str) -> Command | Response:
        """Return a command with the candidates that are open here, then the instance; by default its own request."""
        if not asked.candidates and asked.request is not None:
            victim = self._one(asked)
            return victim if isinstance(victim, Response) else self._command(asked, candidates=(victim,))
        candidates = tuple(dict.fromkeys(self._here(asked.candidates)))
        if self._is_backend(instance):
            found = [] if asked.request is None else self._named(asked.request[0], asked.request[1])
            request = found[0] if len(found) == 1 else None
            return self._command(asked, request=request, instance=instance, candidates=candidates)
        if candidates:
            return self._command(asked, candidates=candidates)
        if asked.candidates:
            return Response(200, "unknown_request", "none of the candidates is open here")
        return _no_backend(instance)

    def _one(self, asked: ActionRequest) -> RequestKey | Response:
        """Return the one open request of an action."""
        if asked.request is None:
            return _refused(f"`{asked.action}` needs a request")
        found = self._named(asked.request[0], asked.request[1])
        if len(found) > 1:
            return _refused(f"ambiguous: {len(found)} requests of this span are open here")
        return found[0] if found else Response(200, "unknown_request", "no such request is open here")

    def _here(self, candidates: Iterable[Mapping[str, Any]]) -> Iterable[RequestKey]:
        for candidate in candidates:
            found = self._named(candidate.get("trace_id"), candidate.get("span_id"))
            if len(found) == 1:
                yield found[0]

    def _named(self, trace_id: object, span_id: object) -> Sequence[RequestKey]:
        trace, span = _id(trace_id, _TRACE_BYTES), _id(span_id, _SPAN_BYTES)
        return () if trace is None or span is None else self._find((trace, span, DEFAULT_TENANT))

    def _command(
        self,
        asked: ActionRequest,
        arguments: Mapping[str, Any] | None = None,
        *,
        request: RequestKey | None = None,
        instance: str = "",
        candidates: tuple[RequestKey, ...] = (),
    ) -> Command:
        rule, expires_ns = one_line(asked.rule), asked.expires_unix_nano
        return Command(asked.id, asked.action, expires_ns, rule, arguments or {}, request, instance, candidates)


def _refused(detail: str) -> Response:
    return Response(200, "refused", detail)


def _no_backend(instance: str) -> Response:
    return _refused(f"no backend is called {one_line(instance)!r}")


def _id(written: object, length: int) -> bytes | None:
    """Return an id of so many bytes from hex, None if it is none."""
    if not isinstance(written, str) or len(written) != 2 * length:
        return None
    try:
        return bytes.fromhex(written)
    except ValueError:
        return None
