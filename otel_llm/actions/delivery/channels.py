"""The channels of alerts: a signed webhook, a log file, an OTLP endpoint."""

from __future__ import annotations

import io
import json
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final, Protocol

from otel_llm.actions.delivery.http_request import NoAnswerError, send_request
from otel_llm.actions.delivery.signing import signed_headers
from otel_llm.actions.execute.events import CONTENT_TYPE
from otel_llm.config.file_defaults import PRIVATE
from otel_llm.config.otlp_target import user_agent
from otel_llm.config.secret_files import read_signing_secrets
from otel_llm.config.yaml_file import ConfigError
from otel_llm.export.transport.attempt import Attempt, retry_after_s
from otel_llm.rules.decisions.output_file import open_output
from otel_llm.shared.whole_files import whole_lines

if TYPE_CHECKING:
    from collections.abc import Iterable
    from pathlib import Path

    from opentelemetry.sdk._logs.export import LogRecordExporter

    from otel_llm.actions.delivery.durable_queue import Message
    from otel_llm.actions.settings import Receiver, ServiceSettings
    from otel_llm.config.otlp_target import OtlpTarget
    from otel_llm.shared.clock import Clock

ALERT_EVENT: Final = "otel_llm.alert"
LOG: Final = "log"
OTLP: Final = "otlp"
WEBHOOK: Final = "webhook:"
"""Names of channels, this one followed by the receiver's."""
ALREADY: Final = 409
_PASSING: Final = frozenset({408, 425, 429})


class Channel(Protocol):
    """A destination of messages."""

    def deliver(self, message: Message) -> Attempt:
        """Make one attempt; raises nothing."""


@dataclass(frozen=True, slots=True)
class WebhookChannel:
    """A webhook; each try is signed with its own time under the same id, by which the receiver knows a repetition."""

    receiver: Receiver
    clock: Clock

    def deliver(self, message: Message) -> Attempt:
        """Make one attempt; a redirect is a failure, passing failures are tried again."""
        body = message.body.encode()
        headers = {"content-type": CONTENT_TYPE, "user-agent": user_agent()}
        try:
            secrets = read_signing_secrets(self.receiver.secret_file)
            headers |= signed_headers(message.id, self.clock.now_ns() // 10**9, body, secrets)
            answer = send_request("POST", self.receiver.url, headers, body, self.receiver.timeout_s)
        except (NoAnswerError, ConfigError) as error:
            return Attempt("retry", str(error))
        if answer.ok or answer.status == ALREADY:
            return Attempt("accepted")
        if answer.status >= 500 or answer.status in _PASSING:
            return Attempt("retry", f"HTTP {answer.status}", retry_after_s(answer.headers.get("retry-after")))
        redirect = ": redirects are not followed" if 300 <= answer.status < 400 else ""
        return Attempt("refused", f"HTTP {answer.status}{redirect}")


@dataclass(slots=True)
class LogChannel:
    """A file of JSON lines, opened for each message so that it can be moved away; a line is written once."""

    path: Path
    mode: int = PRIVATE
    _there: set[str] | None = None

    def deliver(self, message: Message) -> Attempt:
        """Append the line."""
        try:
            if self._there is None:
                self.path.parent.mkdir(parents=True, exist_ok=True)
                self._there = ids_in(self.path)
            if message.id not in self._there:
                opened = open_output(self.path, append=True, mode=self.mode)
                with io.BufferedWriter(opened.file) as file:
                    file.write(f"{message.body}\n".encode())
                self._there.add(message.id)
        except OSError as error:
            return Attempt("retry", f"{self.path}: {error.strerror}")
        return Attempt("accepted")


@dataclass(slots=True)
class OtlpChannel:
    """An OTLP endpoint; it gets each alert as a log record, an event `otel_llm.alert`."""

    target: OtlpTarget
    clock: Clock
    instance_id: str
    _exporter: LogRecordExporter | None = field(default=None, repr=False)

    def deliver(self, message: Message) -> Attempt:
        """Make one attempt; within the target's timeout the exporter itself repeats passing failures."""
        from opentelemetry.instrumentation.utils import suppress_instrumentation
        from opentelemetry.sdk._logs import ReadableLogRecord
        from opentelemetry.sdk._logs.export import LogRecordExportResult

        from otel_llm.shared.otlp_exporters import log_exporter, resource, scope

        if self._exporter is None:
            self._exporter = log_exporter(self.target)
        record = alert_record(json.loads(message.body), self.clock.now_ns())
        with suppress_instrumentation():
            result = self._exporter.export([ReadableLogRecord(record, resource(self.instance_id), scope())])
        if result is LogRecordExportResult.SUCCESS:
            return Attempt("accepted")
        return Attempt("retry", "the exporter reported a failure")

    def close(self) -> None:
        """Close the connection."""
        if self._exporter is not None:
            self._exporter.shutdown()  # type: ignore[no-untyped-call]


def channels_of(
    settings: ServiceSettings, clock: Clock, source: str
) -> dict[str, WebhookChannel | LogChannel | OtlpChannel]:
    """Return the channels that the settings name, by the name that messages use; `source` is the sender for OTLP."""
    receivers = [receiver for receiver in settings.receivers.values() if receiver.kind == "notification"]
    channels: dict[str, WebhookChannel | LogChannel | OtlpChannel] = {
        f"{WEBHOOK}{receiver.name}": WebhookChannel(receiver, clock) for receiver in receivers
    }
    if settings.alerts.log is not None:
        channels[LOG] = LogChannel(settings.alerts.log, settings.files.mode)
    if settings.alerts.otlp is not None:
        channels[OTLP] = OtlpChannel(settings.alerts.otlp, clock, source)
    return channels


def close(channels: Iterable[Channel]) -> None:
    """Close the connections of channels."""
    for channel in channels:
        if isinstance(channel, OtlpChannel):
            channel.close()


def alert_record(line: dict[str, Any], now_ns: int) -> Any:
    """Return the log record of a line of the alert log; its labels are attributes of their own."""
    from opentelemetry._logs import LogRecord, SeverityNumber
    from opentelemetry.context import Context

    firing = line["status"] == "firing"
    reported = {f"annotation.{name}": value for name, value in line["annotations"].items()}
    reported |= {f"label.{name}": value for name, value in line["labels"].items()}
    return LogRecord(
        timestamp=line["starts_unix_nano"] if firing else line["ends_unix_nano"],
        observed_timestamp=now_ns,
        context=Context(),
        severity_number=SeverityNumber.WARN if firing else SeverityNumber.INFO,
        event_name=ALERT_EVENT,
        body=line["annotations"]["summary"],
        attributes={"id": line["id"], "status": line["status"], **reported},
    )


def ids_in(path: Path) -> set[str]:
    """Return the ids of the last lines of a log of alerts; raises OSError if it cannot be read."""
    found = set()
    for line in whole_lines(path):
        try:
            found.add(str(json.loads(line)["id"]))
        except (ValueError, KeyError, TypeError):
            continue  # not ours: left alone
    return found
