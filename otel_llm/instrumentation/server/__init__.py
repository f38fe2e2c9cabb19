"""The middleware of serving processes: it records the replies that leave them, over ASGI and WSGI."""
