"""LiteLLM's proxy: its own calls of a model, while a client reads a stream from it over a bare socket."""

import asyncio
import json
import os
import tempfile

import uvicorn

KEY = "sk-this-key-is-long-enough-for-the-proxy"


async def proxy(ask):
    model = {"model": f"openai/{ask.model}", "api_base": ask.v1, "api_key": "none", "max_retries": 0}
    config = {
        "model_list": [{"model_name": "mine", "litellm_params": model}],
        "general_settings": {"master_key": KEY},
    }
    with tempfile.NamedTemporaryFile("w", suffix=".yaml") as file:
        json.dump(config, file)
        file.flush()
        os.environ["CONFIG_FILE_PATH"] = file.name
        from litellm.proxy.proxy_server import app

        server = uvicorn.Server(uvicorn.Config(app, port=0, log_level="error"))
        serving = asyncio.ensure_future(server.serve())
        while not server.started:
            await asyncio.sleep(0.05)
        port = server.servers[0].sockets[0].getsockname()[1]
        ask.got += await _read(port)
        server.should_exit = True
        await serving


async def _read(port):
    """Return the words of one streamed reply."""
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    body = json.dumps({"model": "mine", "messages": [{"role": "user", "content": "?"}], "stream": True}).encode()
    head = (
        f"POST /v1/chat/completions HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer {KEY}\r\n"
        "Content-Type: application/json\r\nConnection: close\r\n"
    )
    writer.write(head.encode() + f"Content-Length: {len(body)}\r\n\r\n".encode() + body)
    said = []
    while line := await reader.readline():
        if line.startswith(b"data: {"):
            delta = json.loads(line[6:])["choices"][0]["delta"]
            said.append(delta.get("content") or "")
        elif line.startswith((b"data: [DONE]", b"{")):
            break
    writer.close()
    return [word for word in said if word]
