"""instructor: a partial object that grows with the stream, sync and async."""

import instructor
import openai
from pydantic import BaseModel

QUESTION = [{"role": "user", "content": "Tell me something."}]


class Said(BaseModel):
    text: str = ""


def _asked(ask):
    tools = ask.model.replace("tokens", "tools")  # the object comes as the arguments of a tool call
    return {"model": tools, "messages": QUESTION, "response_model": Said, "max_retries": 0}


def sync(ask):
    client = instructor.from_openai(openai.OpenAI(base_url=ask.v1, api_key="none", max_retries=0))
    ask.read(client.chat.completions.create_partial(**_asked(ask)), lambda said: said.text)


async def asynchronous(ask):
    client = instructor.from_openai(openai.AsyncOpenAI(base_url=ask.v1, api_key="none", max_retries=0))
    await ask.aread(client.chat.completions.create_partial(**_asked(ask)), lambda said: said.text)
