"""Send an action to a receiver that the configuration names, as a signed CloudEvent."""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final

from otel_llm.actions.delivery.http_request import NoAnswerError, send_request
from otel_llm.actions.delivery.signing import signed_headers
from otel_llm.actions.execute.events import CONTENT_TYPE, Order, cloud_event
from otel_llm.actions.execute.executor import Reply, of_silence, result_of
from otel_llm.config.yaml_file import ConfigError
from otel_llm.shared.clock import monotonic_s

if TYPE_CHECKING:
    from collections.abc import Callable

    from otel_llm.actions.delivery.http_request import Answer

_NAME_CHARS: Final = 256


@dataclass(frozen=True, slots=True)
class Webhook:
    """The executor that sends actions to one URL; `docs/actions.md` has the request and the possible answers.

    `secrets` is called for each try, so that new ones count at once; it may raise, and then nothing is sent.
    """

    url: str = field(repr=False)
    secrets: Callable[[], tuple[bytes, ...]]
    source: str
    agent: str
    timeout_s: float = 5.0
    exclusive: bool = False
    in_stream: bool = False
    target: str = ""
    relays: dict[str, str] | None = None
    """The names of relays by URL, as they stated them; None: the receiver is no relay."""

    def attempt(self, order: Order, now_ns: int, timeout_s: float) -> Reply:
        """Send it once, signed at `now_ns` (unix)."""
        try:
            secrets = self.secrets()
        except ConfigError as error:  # the file was changed to one that cannot be used
            return Reply("refused", f"no secret to sign with: {error}")
        until_s = monotonic_s() + timeout_s
        try:
            answer = self._sent(order, now_ns, secrets, timeout_s)
            if self.relays is not None and (name := _stated_name(answer)):  # it has started since, or is new here
                self.relays[self.url] = name
                answer = self._sent(order, now_ns, secrets, until_s - monotonic_s())
        except NoAnswerError as error:
            return of_silence(error)
        return result_of(answer)

    def _sent(self, order: Order, now_ns: int, secrets: tuple[bytes, ...], timeout_s: float) -> Answer:
        body = cloud_event(order, self.source, (self.relays or {}).get(self.url, ""))
        headers = {"content-type": CONTENT_TYPE, "user-agent": self.agent}
        headers |= signed_headers(order.id, now_ns // 10**9, body, secrets)
        return send_request("POST", self.url, headers, body, timeout_s)

    def check(self, timeout_s: float) -> bool | None:  # noqa: ARG002
        """Return None: a receiver's answer says what it did."""
        return None


def _stated_name(answer: Answer) -> str:
    """Return the name that a relay asks for, "" if it does not ask."""
    try:
        reported = json.loads(answer.body or b"")
    except (ValueError, RecursionError):
        return ""
    name = reported.get("relay") if isinstance(reported, dict) else None
    return name if isinstance(name, str) and len(name) <= _NAME_CHARS else ""
