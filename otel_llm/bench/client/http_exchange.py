"""One request and the response to it: HTTP decoded from bytes whose time of reading is known."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import httptools

from otel_llm.bench.client.streamed_reply import CLOSED_EARLY, Reply
from otel_llm.instrumentation.parse.sse_chunks import media_type
from otel_llm.instrumentation.segments.outcomes import DISCONNECTED, ERROR

if TYPE_CHECKING:
    from otel_llm.instrumentation.parse.sse_chunks import Api

EVENT_STREAM: Final = "text/event-stream"
NOT_STREAMED: Final = "not_streamed"
BAD_HTTP: Final = "bad_http"
MOST_ERROR_BYTES: Final = 1 << 16
MOST_FRAMING_BYTES: Final = 1 << 17
"""Headers, interim responses, trailers: the parser keeps a line of them until it ends."""
_OK: Final = 200


class Exchange:
    """The exchange of a request's `number`.

    `sent_ns`: the start of the connect or the write. `reply` ends by itself; `complete` once the response has been
    received to its end, `keeps_alive` if the connection can then be used again. `body`: the response if it is no
    stream of events, cut at `most_bytes`; `location`: where a redirection leads, "" for none.
    """

    def __init__(self, number: int, intended_ns: int, sent_ns: int, api: Api, request: bytes) -> None:
        self.number = number
        self.intended_ns = intended_ns
        self.sent_ns = sent_ns
        self.request = request
        self.reply = Reply(api)
        self.status = 0
        self.content_type = ""
        self.location = ""
        self.complete = False
        self.keeps_alive = False
        self.begun = False
        self.body = bytearray()
        self.most_bytes = MOST_ERROR_BYTES
        self._at_ns = 0
        self._framing_bytes = 0
        self._streams = False
        self._parser = httptools.HttpResponseParser(self)

    def feed(self, at_ns: int, data: bytes) -> bool:
        """Read bytes of the connection, read at `at_ns`; return False if they are no HTTP."""
        self.begun = True
        self._at_ns = at_ns
        self._framing_bytes += len(data)
        try:
            self._parser.feed_data(data)
            is_http = self._framing_bytes <= MOST_FRAMING_BYTES
        except (httptools.HttpParserError, httptools.HttpParserUpgrade):
            is_http = False
        if not is_http:
            self.reply.fail(at_ns, ERROR, BAD_HTTP)
        return is_http

    def closed(self, at_ns: int) -> None:
        """Note the end of the connection."""
        if self._streams:
            self.reply.body_ended(at_ns)
        elif self.status:  # an answer that the end of the connection ends, as HTTP/1.0 has it
            self._fail_unstreamed(at_ns)
        else:
            self.reply.fail(at_ns, DISCONNECTED, CLOSED_EARLY)

    # For the parser.

    def on_header(self, name: bytes, value: bytes) -> None:
        """Note a header."""
        if name.lower() == b"content-type":
            self.content_type = media_type(value.decode("latin-1"))
        elif name.lower() == b"location":
            self.location = value.decode("latin-1")

    def on_headers_complete(self) -> None:
        """Note the status."""
        self.status = self._parser.get_status_code()
        self._streams = self.status == _OK and self.content_type == EVENT_STREAM

    def on_body(self, body: bytes) -> None:
        """Read a part of the body."""
        self._framing_bytes = 0
        if self._streams:
            self.reply.take(self._at_ns, body)
        elif len(self.body) < self.most_bytes:
            self.body += body[: self.most_bytes - len(self.body)]

    def on_message_complete(self) -> None:
        """Note the end of the response."""
        if self.status < _OK:  # 100 Continue: the response follows
            return
        self.complete = True
        self.keeps_alive = bool(self._parser.should_keep_alive())  # known now only: the parser begins anew
        if self._streams:
            self.reply.body_ended(self._at_ns)
        else:
            self._fail_unstreamed(self._at_ns)

    def _fail_unstreamed(self, at_ns: int) -> None:
        error = NOT_STREAMED if self.status == _OK else f"http_{self.status}"
        self.reply.fail(at_ns, ERROR, error)
