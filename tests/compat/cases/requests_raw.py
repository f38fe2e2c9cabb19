"""requests: streams of several wires, read by hand."""

import requests

HEADERS = {"Accept": "text/event-stream"}


def _post(ask, path, **body):
    response = requests.post(ask.url + path, json=body, headers=HEADERS, stream=True, timeout=10)
    response.raise_for_status()
    return response


def _line(line):
    return line.decode() if b'"w' in line else ""


def _openai(ask):
    return _post(ask, "/v1/chat/completions", model=ask.model, stream=True, messages=[])


def lines(ask):
    with _openai(ask) as response:
        ask.read(response.iter_lines(), _line)


def content(ask):
    with _openai(ask) as response:
        ask.read(response.iter_content(chunk_size=None), _line)


def session(ask):
    with (
        requests.Session() as made,
        made.post(ask.url + "/v1/messages", json={"model": ask.model, "stream": True}, stream=True, timeout=10) as got,
    ):
        got.raise_for_status()
        ask.read(got.iter_lines(), _line)


def gemini(ask):
    with _post(ask, f"/v1beta/models/{ask.model}:streamGenerateContent?alt=sse", contents=[]) as response:
        ask.read(response.iter_lines(), _line)


def ollama(ask):
    with _post(ask, "/api/chat", model=ask.model, messages=[]) as response:
        ask.read(response.iter_lines(), _line)
