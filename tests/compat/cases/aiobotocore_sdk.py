"""aiobotocore: Bedrock's converse_stream and invoke_model_with_response_stream."""

import json

from aiobotocore.config import AioConfig
from aiobotocore.session import get_session


def _client(ask):
    config = AioConfig(retries={"max_attempts": 0})
    session = get_session()
    return session.create_client("bedrock-runtime", endpoint_url=ask.url, region_name="us-east-1", config=config)


def _said(event):
    return event.get("contentBlockDelta", {}).get("delta", {}).get("text", "")


def _invoked(event):
    data = json.loads(event["chunk"]["bytes"])
    return data["delta"].get("text", "") if data["type"] == "content_block_delta" else ""


async def converse(ask):
    messages = [{"role": "user", "content": [{"text": "Tell me something."}]}]
    async with _client(ask) as client:
        response = await client.converse_stream(modelId=ask.model, messages=messages)
        await ask.aread(response["stream"], _said)


async def invoke(ask):
    async with _client(ask) as client:
        response = await client.invoke_model_with_response_stream(modelId=f"anthropic.{ask.model}", body=b"{}")
        await ask.aread(response["body"], _invoked)
