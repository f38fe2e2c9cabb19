"""Export of closed windows as OTLP log records."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from opentelemetry._logs import LogRecord, SeverityNumber
from opentelemetry.context import Context
from opentelemetry.sdk._logs import ReadableLogRecord
from opentelemetry.sdk._logs.export import LogRecordExportResult

from otel_llm.collector.export.send_queue import GIVE_UP_S, OutQueue
from otel_llm.export.transport.attempt import Attempt
from otel_llm.shared.otlp_exporters import log_exporter, resource, scope

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from otel_llm.config.otlp_target import OtlpTarget

WINDOW_EVENT: Final = "otel_llm.window"
DEFAULT_QUEUE_BYTES: Final = 64 * 2**20
ROW_BYTES: Final = 4096
"""The memory of a queued window, without its strings."""
ROWS_A_REQUEST: Final = 500
DEFAULT_LINGER_S: Final = 1.0
"""How long a closed window waits for others: the windows of all groups close at once."""

Row = dict[str, object]


class WindowsOut:
    """Sends each closed window as a log record: call `start`, `offer` for each, `stop` once.

    The event's name is `otel_llm.window`, its time the end of the window, its attributes the columns of `--windows`
    that are not null.
    """

    def __init__(
        self,
        target: OtlpTarget,
        *,
        now_ns: Callable[[], int],
        instance_id: str,
        queue_bytes: int = DEFAULT_QUEUE_BYTES,
        linger_s: float = DEFAULT_LINGER_S,
        give_up_s: float = GIVE_UP_S,
    ) -> None:
        self._exporter = log_exporter(target)
        self._now_ns = now_ns
        self._resource = resource(instance_id)
        self._scope = scope()
        self._queue: OutQueue[ReadableLogRecord] = OutQueue(
            "windows",
            self._send,
            self._exporter.shutdown,
            size=_size,
            capacity=queue_bytes,
            batch=ROWS_A_REQUEST * ROW_BYTES,
            timeout_s=target.timeout_s,
            linger_s=linger_s,
            give_up_s=give_up_s,
        )

    def start(self) -> None:
        """Start sending."""
        self._queue.start()

    def offer(self, row: Row) -> None:
        """Queue a closed window, or drop and count it; never wait."""
        self._queue.offer(ReadableLogRecord(window_record(row, self._now_ns()), self._resource, self._scope))

    def stop(self, grace_s: float) -> bool:
        """Send the queue within `grace_s` seconds, drop and count the rest; return whether none was dropped."""
        return self._queue.stop(grace_s)

    def counts(self) -> dict[str, int]:
        """Return the counts of windows, by the keys of the collector's counts."""
        counts = self._queue.counts
        return {
            "windows_out_queued_bytes": self._queue.queued,
            "windows_out_sent": counts.sent,
            "windows_out_dropped": self._queue.dropped,
            "windows_out_failed": counts.failed,
        }

    def _send(self, records: Sequence[ReadableLogRecord], timeout_s: float) -> Attempt:  # noqa: ARG002
        # The exporter retries within the target's timeout, and reports no reason for a failure.
        if self._exporter.export(records) is LogRecordExportResult.SUCCESS:
            return Attempt("accepted")
        return Attempt("retry", "the exporter reported a failure")


def window_record(row: Mapping[str, Any], now_ns: int) -> LogRecord:
    """Return the log record of a closed window; `now_ns`: when it closed, unix ns."""
    end_ns = row["window_start_unix_nano"] + round(row["window_s"] * 1e9)
    return LogRecord(
        timestamp=end_ns,
        observed_timestamp=now_ns,
        context=Context(),
        severity_number=SeverityNumber.INFO,
        event_name=WINDOW_EVENT,
        attributes={name: value for name, value in row.items() if value is not None},
    )


def _size(readable: ReadableLogRecord) -> int:
    attributes = readable.log_record.attributes or {}
    return ROW_BYTES + sum(len(value) for value in attributes.values() if isinstance(value, str))
