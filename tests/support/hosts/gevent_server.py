"""Serves the WSGI gateway by gevent's own server; `GATEWAY_RECORD=before` instruments before gevent patches Python."""

from __future__ import annotations

import os
import sys

if os.environ.get("GATEWAY_RECORD") == "before":
    import otel_llm

    otel_llm.instrument()

from gevent import monkey

monkey.patch_all()

from gevent.pywsgi import WSGIServer  # noqa: E402
from support.hosts.gateway import wsgi  # noqa: E402

WSGIServer(("127.0.0.1", int(sys.argv[1])), wsgi, log=None).serve_forever()
