"""The middleware of serving processes: it records their streamed replies, over ASGI and WSGI."""
