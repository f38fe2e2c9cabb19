"""A worker: a process that sends its share of a load and reports what it reads. It parses nothing on the path.

It ends when its socket to the load client is closed.
"""

from __future__ import annotations

import asyncio
import gc
import socket
import time
from contextlib import suppress
from typing import TYPE_CHECKING, Any, Final

from otel_llm.bench.client.messages import (
    Cancel,
    Configure,
    Ended,
    Event,
    Report,
    Run,
    Sent,
    Stop,
    Tokens,
    Unframer,
    framed,
)
from otel_llm.bench.client.request_sender import Sender
from otel_llm.bench.plan.prompts import Prompts
from otel_llm.shared.clock import monotonic_ns
from otel_llm.shared.web.open_files import allow_open_files

if TYPE_CHECKING:
    from otel_llm.bench.client.http_exchange import Exchange

REPORT_NS: Final = 50_000_000
RETRY_S: Final = 0.1
"""The pause of a closed loop's slot after a failure: a server that refuses at once is not flooded."""
MOST_CONNECTIONS: Final = 20_000
_NEVER_NS: Final = 1 << 62


class Worker:
    """The state of a worker; all of it belongs to one event loop."""

    def __init__(self, out: asyncio.StreamWriter, config: Configure) -> None:
        self._out = out
        self._config = config
        self._prompts = Prompts(config.spec)
        self._sender = Sender(config.target, config.address, self._on_ended)
        self._events: list[Event] = []
        self._run: Run | None = None
        self._row = 0
        self._stop_ns = _NEVER_NS
        self._all_sent = True
        self._timer: asyncio.TimerHandle | None = None
        self._due_ns = 0

    # Commands.

    def take(self, message: Any) -> None:
        """Apply a command."""
        if isinstance(message, Run):
            self._begin(message)
        elif isinstance(message, Stop):
            self._stop_ns = min(self._stop_ns, message.at_ns)
            if self._run is not None and self._run.at_ns is None:
                self._all_sent = True
            else:
                self._schedule()
        elif isinstance(message, Cancel):
            self._all_sent = True
            self._schedule()
            self._sender.cancel(message.outcome, message.error)

    def _begin(self, run: Run) -> None:
        gc.collect()
        gc.freeze()
        loop = asyncio.get_running_loop()
        self._run, self._row, self._stop_ns = run, 0, _NEVER_NS
        self._all_sent = run.at_ns is None and not run.concurrency
        self._due_ns = max(monotonic_ns(), run.start_ns)
        if run.at_ns is None:
            loop.call_at(run.start_ns / 1e9, self._fill, run)
        else:
            self._prepare()
        self._report_later()

    # An open loop: the next request is made up before its time, and written when it is there.

    def _prepare(self) -> None:
        run = self._run
        assert run is not None  # noqa: S101
        assert run.at_ns is not None  # noqa: S101
        assert run.numbers is not None  # noqa: S101
        if self._row == len(run.at_ns):
            self._all_sent = True
            return
        self._next_ns = int(run.at_ns[self._row])
        self._next_number = int(run.numbers[self._row])
        self._next_request = self._request(self._next_number, self._row)
        self._schedule()

    def _schedule(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        if self._all_sent:
            return
        if self._next_ns >= self._stop_ns:
            self._all_sent = True
            return
        self._timer = asyncio.get_running_loop().call_at(self._next_ns / 1e9, self._send_due)

    def _send_due(self) -> None:
        self._timer = None
        self._send(self._next_number, self._next_ns, self._next_request, self._row)
        self._row += 1
        self._prepare()

    # A closed loop.

    def _fill(self, run: Run) -> None:
        for _ in range(run.concurrency):
            self._send_next(run)

    def _send_next(self, run: Run) -> None:
        if run is not self._run or self._all_sent:
            return
        if (run.most is not None and self._row >= run.most) or monotonic_ns() >= (run.until_ns or _NEVER_NS):
            self._all_sent = True
            return
        number = run.first + self._row * run.step
        self._row += 1
        row = number % len(run.input_tokens)
        self._send(number, None, self._request(number, row), row)

    # Both.

    def _request(self, number: int, row: int) -> bytes:
        run, config = self._run, self._config
        assert run is not None  # noqa: S101
        text = self._prompts.text(number, int(run.input_tokens[row]))
        body = config.options.body(config.target, text, int(run.output_tokens[row]))
        return config.target.request("POST", config.target.path, body)

    def _send(self, number: int, intended_ns: int | None, request: bytes, row: int) -> None:
        run = self._run
        assert run is not None  # noqa: S101
        exchange = self._sender.begin(number, intended_ns, request)
        lengths = int(run.input_tokens[row]), int(run.output_tokens[row])
        self._events.append(Sent(number, exchange.intended_ns, exchange.sent_ns, *lengths))

    def _on_ended(self, exchange: Exchange) -> None:
        reply, number = exchange.reply, exchange.number
        assert reply.end_ns is not None  # noqa: S101
        assert reply.outcome is not None  # noqa: S101
        self._take_items(exchange)
        counts = reply.reader.reported.input_tokens, *reply.reader.reported.total
        self._events.append(Ended(number, reply.end_ns, reply.outcome, reply.error, reply.basis, *counts))
        run = self._run
        if run is not None and run.at_ns is None:
            if reply.error is None:
                self._send_next(run)
            else:
                asyncio.get_running_loop().call_later(RETRY_S, self._send_next, run)

    def _take_items(self, exchange: Exchange) -> None:
        items = exchange.reply.items
        if items:
            self._events.append(Tokens(exchange.number, items[:]))
            items.clear()

    def _report_later(self) -> None:
        self._due_ns += REPORT_NS
        asyncio.get_running_loop().call_at(self._due_ns / 1e9, self._report)

    def _report(self) -> None:
        now_ns = monotonic_ns()
        for exchange in self._sender.in_flight.values():
            self._take_items(exchange)
        finished = self._all_sent and not self._sender.in_flight
        until_ns = min(now_ns, self._sender.decoder.oldest_ns or _NEVER_NS, self._unsent_ns())
        events, self._events = self._events, []
        late_ns = max(0, now_ns - self._due_ns)
        cpu_ns = time.process_time_ns()
        self._out.write(framed(Report(until_ns, now_ns, cpu_ns, late_ns, self._all_sent, finished, events)))
        if finished:
            self._run = None
        else:
            self._due_ns = max(self._due_ns, now_ns - REPORT_NS)
            self._report_later()

    def _unsent_ns(self) -> int:
        """Return the intended time of the next request."""
        open_loop = self._run is not None and self._run.at_ns is not None
        return self._next_ns if open_loop and not self._all_sent else _NEVER_NS


async def serve(channel: socket.socket) -> None:
    """Serve one load client until it closes the socket."""
    reader, writer = await asyncio.open_connection(sock=channel)
    unframer = Unframer()
    worker: Worker | None = None
    with suppress(ConnectionError):  # it may close with reports unread
        while data := await reader.read(1 << 20):
            for message in unframer.feed(data):
                if isinstance(message, Configure):
                    worker = Worker(writer, message)
                    writer.write(framed("ready"))
                elif worker is not None:
                    worker.take(message)


def main(fd: int) -> None:
    """Run a worker on a socket of the load client, given its descriptor."""
    allow_open_files(MOST_CONNECTIONS)
    asyncio.run(serve(socket.socket(fileno=fd)))
