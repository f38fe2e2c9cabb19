"""Flask and Django gateways: views that call a model by the OpenAI SDK and stream its reply on."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator
from typing import Any

import django
import flask
from django.conf import settings
from django.core.asgi import get_asgi_application
from django.core.handlers.asgi import ASGIHandler
from django.core.handlers.wsgi import WSGIHandler
from django.core.wsgi import get_wsgi_application
from django.http import HttpRequest, HttpResponseBase, JsonResponse, StreamingHttpResponse
from django.urls import path
from support.instrumentation.gateways import by_async_sdk, by_sync_sdk

# At import: a look at all objects of the process, as some tests take, fails on settings that are not configured.
settings.configure(
    ROOT_URLCONF=__name__,
    ALLOWED_HOSTS=["*"],
    SECRET_KEY="of no use",
    MIDDLEWARE=["django.middleware.common.CommonMiddleware"],
    LOGGING_CONFIG=None,
)
django.setup()

MODEL: list[str] = []
"""The URL of the model that Django's views call: the newest."""


def flask_gateway(url: str) -> flask.Flask:
    """Return a Flask application that streams at `/chat` and at the API's path."""
    app = flask.Flask("gateway")

    @app.post("/v1/chat/completions")
    @app.post("/chat")
    def chat() -> flask.Response:
        flask.request.get_json(force=True)
        return flask.Response(flask.stream_with_context(by_sync_sdk(url)), mimetype="text/event-stream")

    @app.post("/whole")
    def whole() -> dict[str, Any]:
        return {"answer": "all of it"}

    return app


def chat(request: HttpRequest) -> HttpResponseBase:
    return StreamingHttpResponse(by_sync_sdk(MODEL[-1]), content_type="text/event-stream")


async def async_chat(request: HttpRequest) -> HttpResponseBase:
    async def body() -> AsyncIterator[str]:
        async for data in by_async_sdk(MODEL[-1]):
            yield data

    return StreamingHttpResponse(body(), content_type="text/event-stream")


def text(request: HttpRequest) -> HttpResponseBase:
    def body() -> Iterator[str]:
        yield from ("one ", "two ", "three")

    return StreamingHttpResponse(body())


def whole(request: HttpRequest) -> HttpResponseBase:
    return JsonResponse({"answer": "all of it"})


urlpatterns = [
    path("chat", chat),
    path("v1/chat/completions", chat),
    path("async/chat", async_chat),
    path("async/chat/completions", async_chat),
    path("text", text),
    path("whole", whole),
]


def django_wsgi(url: str) -> WSGIHandler:
    """Return Django's application for WSGI."""
    MODEL.append(url)
    return get_wsgi_application()


def django_asgi(url: str) -> ASGIHandler:
    """Return Django's application for ASGI."""
    MODEL.append(url)
    return get_asgi_application()
