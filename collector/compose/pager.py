"""A pager that prints the alerts which Alertmanager sends it: `python pager.py PORT`."""

from __future__ import annotations

import json
import sys
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

MOST_BYTES = 1_000_000


class Pager(BaseHTTPRequestHandler):
    """The path of a request is how urgent it is: `/page` or `/ticket`."""

    def do_POST(self) -> None:
        """Print a line for each alert of a message."""
        length = int(self.headers.get("Content-Length", "0"))
        if length > MOST_BYTES:
            self.send_error(413)
            return
        for alert in json.loads(self.rfile.read(length))["alerts"]:
            labels = ", ".join(f"{name}={value}" for name, value in alert["labels"].items() if name != "alertname")
            what = f"{alert['labels']['alertname']} {{{labels}}}  {alert['annotations'].get('summary', '')}"
            sys.stdout.write(ascii(f"{self.path:<8} {alert['status'].upper():<9}{what}")[1:-1] + "\n")
        sys.stdout.flush()
        self.send_response(204)
        self.end_headers()

    def log_message(self, *_: object) -> None:
        """Print alerts only."""


if __name__ == "__main__":
    ThreadingHTTPServer(("0.0.0.0", int(sys.argv[1])), Pager).serve_forever()  # noqa: S104  a container's own address
