"""LangGraph: a graph of one model call, streamed as messages."""

from langchain_openai import ChatOpenAI
from langgraph.graph import END, START, MessagesState, StateGraph

QUESTION = {"messages": [("user", "Tell me something.")]}


def _model(ask):
    return ChatOpenAI(model=ask.model, base_url=ask.v1, api_key="none", max_retries=0)


def _graph(node):
    graph = StateGraph(MessagesState)
    graph.add_node("model", node)
    graph.add_edge(START, "model")
    graph.add_edge("model", END)
    return graph.compile()


def sync(ask):
    model = _model(ask)
    graph = _graph(lambda state: {"messages": [model.invoke(state["messages"])]})
    ask.read(graph.stream(QUESTION, stream_mode="messages"), lambda item: item[0].text)


async def asynchronous(ask):
    model = _model(ask)

    async def node(state):
        return {"messages": [await model.ainvoke(state["messages"])]}

    await ask.aread(_graph(node).astream(QUESTION, stream_mode="messages"), lambda item: item[0].text)
