"""CrewAI: a streaming model's call; the pieces go to its event bus."""

from crewai import LLM
from crewai.events import LLMStreamChunkEvent, crewai_event_bus


def sync(ask):
    model = LLM(model=f"openai/{ask.model}", base_url=ask.v1, api_key="none", stream=True)
    with crewai_event_bus.scoped_handlers():

        @crewai_event_bus.on(LLMStreamChunkEvent)
        def on_chunk(source, event):
            ask.got.append(event.chunk)

        said = model.call("Tell me something.")
        crewai_event_bus.flush()
    ask.got.sort()  # handlers run in a pool of threads
    return said
