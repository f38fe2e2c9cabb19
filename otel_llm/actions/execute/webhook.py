"""Send an action to a receiver that the configuration names, as a signed CloudEvent."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from otel_llm.actions.delivery.http_request import NoAnswerError, send_request
from otel_llm.actions.delivery.signing import signed_headers
from otel_llm.actions.execute.events import CONTENT_TYPE, Order, cloud_event
from otel_llm.actions.execute.executor import Reply, of_silence, result_of
from otel_llm.rules.files.yamlfile import ConfigError

if TYPE_CHECKING:
    from collections.abc import Callable


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

    def attempt(self, order: Order, now_ns: int, timeout_s: float) -> Reply:
        """Send it once, signed at `now_ns` (unix)."""
        try:
            secrets = self.secrets()
        except ConfigError as error:  # the file was changed to one that cannot be used
            return Reply("refused", f"no secret to sign with: {error}")
        body = cloud_event(order, self.source)
        headers = {"content-type": CONTENT_TYPE, "user-agent": self.agent}
        headers |= signed_headers(order.id, now_ns // 10**9, body, secrets)
        try:
            return result_of(send_request("POST", self.url, headers, body, timeout_s))
        except NoAnswerError as error:
            return of_silence(error)

    def look(self, timeout_s: float) -> bool | None:  # noqa: ARG002
        """Return None: a receiver's answer says what it did."""
        return None
