"""boto3: Bedrock's converse_stream and invoke_model_with_response_stream."""

import json

import boto3
from botocore.config import Config


def _client(ask):
    config = Config(retries={"max_attempts": 0})
    return boto3.client("bedrock-runtime", endpoint_url=ask.url, region_name="us-east-1", config=config)


def _said(event):
    return event.get("contentBlockDelta", {}).get("delta", {}).get("text", "")


def _invoked(event):
    data = json.loads(event["chunk"]["bytes"])
    return data["delta"].get("text", "") if data["type"] == "content_block_delta" else ""


def converse(ask):
    messages = [{"role": "user", "content": [{"text": "Tell me something."}]}]
    response = _client(ask).converse_stream(modelId=ask.model, messages=messages)
    ask.read(response["stream"], _said)


def invoke(ask):
    response = _client(ask).invoke_model_with_response_stream(modelId=f"anthropic.{ask.model}", body=b"{}")
    ask.read(response["body"], _invoked)
