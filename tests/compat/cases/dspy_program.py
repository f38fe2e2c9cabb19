"""dspy: a program whose answer is streamed by `streamify`."""

import dspy


def _program(ask):
    lm = dspy.LM(f"openai/{ask.model}", api_base=ask.v1, api_key="none", cache=False, num_retries=0)
    dspy.configure(lm=lm)
    return dspy.Predict("question -> answer")


async def streamified(ask):
    listeners = [dspy.streaming.StreamListener(signature_field_name="answer")]
    program = dspy.streamify(_program(ask), stream_listeners=listeners)
    await ask.aread(program(question="?"), lambda piece: getattr(piece, "chunk", "") or getattr(piece, "answer", ""))
