"""The matrix that every client stack goes through: each way of ending a stream, bare and instrumented, compared.

To put a stack into it, write a subclass of `Stack` in `stack_<name>.py` beside this file and add one instance to
the list in `tests/instrumentation/test_matrix.py`. It says

- what the server sends: `words(n)` (n steps, one item and one token each, whose text contains `w0 `, `w1 ` ...),
  `before()` and `after()` (the framing around them, `after` with what declares the reply complete), `error()` (what a
  server that fails in the middle of a reply sends);
- how the application reads it, sync (`client`, `open`, `items`, `pulls`, `close`, `entered`) and async (the same with
  an `a` in front); `modes` may leave out one of them;
- `instrumentor()`, unless `otel_llm.instrument()` switches the stack on by itself;
- what ends otherwise for this stack, and why: `outcomes` (by case and mode, or by case).

Everything else is here: the cases, and what is compared. `tests/support/instrumentation/stack_openai.py` is an example.
"""

from __future__ import annotations

import asyncio
import contextlib
import gc
import json
import re
import time
from collections.abc import AsyncIterator, Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar

from opentelemetry import context as otel_context
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from support.instrumentation.recorded import Recorded, ids
from support.patience import WAIT_S
from support.sse_server import BodyEnd, Cut, Gate, Reply, SseServer, Step

import otel_llm
from otel_llm import semconv

MODEL = "m"
WORD = re.compile(r"w\d+ ")
"""The text of one token."""
READ = 3
"""How many items a caller takes that does not read to the end."""
LOCKSTEP = 6
"""Words of a reply that the server sends one by one, each when the caller has got the one before it."""


class CallersOwnError(Exception):
    """What an application raises while it reads."""


class Stack:
    """One client library, as an application uses it, and the server's side of its protocol."""

    name: ClassVar[str]
    modes: ClassVar[Sequence[str]] = ("sync", "async")
    outcomes: ClassVar[Mapping[str, str]] = {}
    """The outcome of a case that this stack cannot tell as the others do; keys `case` or `case, mode`."""
    skipped: ClassVar[Mapping[str, str]] = {}
    """Cases that do not exist for this stack, with the reason; keys as above."""

    def instrumentor(self) -> Any:
        """Return the instrumentor to switch on beside `otel_llm.instrument()`, None if that does it."""
        return None

    # The server's side.

    def before(self) -> Sequence[Step]:
        """Return the framing before the first word."""
        return ()

    def words(self, count: int) -> Sequence[Step]:
        """Return `count` steps of one token each, with the texts `w0 `, `w1 ` and so on."""
        raise NotImplementedError

    def after(self) -> Sequence[Step]:
        """Return how a reply ends that the server completed."""
        raise NotImplementedError

    def error(self) -> Sequence[Step]:
        """Return how a reply ends if the server fails in the middle of it."""
        raise NotImplementedError

    # The application's side. `items` are what it reads of the stream that `open` gives.

    def client(self, url: str) -> contextlib.AbstractContextManager[Any]:
        raise NotImplementedError

    def open(self, client: Any) -> Any:
        raise NotImplementedError

    def items(self, stream: Any) -> Iterator[Any]:
        return iter(stream)

    def pulls(self, stream: Any) -> Iterator[Any]:
        """Return what `next` takes one by one, without a loop; `items` for a library that has nothing of the kind."""
        pulled: Iterator[Any] = stream
        return pulled

    def close(self, stream: Any) -> None:
        stream.close()

    def entered(self, client: Any) -> contextlib.AbstractContextManager[Any]:
        opened: contextlib.AbstractContextManager[Any] = self.open(client)
        return opened

    def aclient(self, url: str) -> contextlib.AbstractAsyncContextManager[Any]:
        raise NotImplementedError

    async def aopen(self, client: Any) -> Any:
        raise NotImplementedError

    def aitems(self, stream: Any) -> AsyncIterator[Any]:
        return aiter(stream)

    def apulls(self, stream: Any) -> AsyncIterator[Any]:
        pulled: AsyncIterator[Any] = stream
        return pulled

    async def aclose(self, stream: Any) -> None:
        await stream.close()

    def aentered(self, client: Any) -> contextlib.AbstractAsyncContextManager[Any]:
        return self._aentered(client)

    @contextlib.asynccontextmanager
    async def _aentered(self, client: Any) -> AsyncIterator[Any]:
        async with await self.aopen(client) as stream:
            yield stream

    def look(self, item: Any) -> str:
        """Return all there is to see of an item; overridden if `repr` does not tell."""
        dump = getattr(item, "model_dump_json", None)
        return str(dump(warnings=False)) if dump is not None else repr(item)

    def is_word(self, seen: str) -> bool:
        """Return whether an item, as it was looked at, is one of the words: a helper may tell each of them twice."""
        return WORD.search(seen) is not None

    def closed(self, stream: Any) -> object:
        """Return whether the connection of a stream was given back, None if that cannot be seen."""
        return getattr(getattr(stream, "response", None), "is_closed", None)


class Heads:
    """Steps of a script that says how far it was played."""

    def __init__(self, steps: Sequence[Step]) -> None:
        self._steps = steps
        self.played = 0
        self.over = False

    def __iter__(self) -> Iterator[Step]:
        for step in self._steps:
            yield step
            self.played += 1
        self.over = True

    def __len__(self) -> int:
        return len(self._steps)

    def __getitem__(self, index: Any) -> Any:
        return self._steps[index]


@dataclass
class Seen:
    """All that the caller got; two of them are compared."""

    items: list[tuple[str, str]] = field(default_factory=list)
    stream: tuple[object, ...] = ()
    raised: tuple[str, ...] = ()
    closed: list[object] = field(default_factory=list)
    context_kept: bool = True
    read_ahead: bool | None = None
    kept: list[object] = field(default_factory=list, compare=False)
    """What the caller still holds."""


class Caller:
    """One caller of one stack: looks at all it gets, and lets the server go on as it does."""

    over: Callable[[], None]
    """Tells the server that the caller is through."""

    def __init__(self, stack: Stack, script: Heads, gates: Sequence[Gate]) -> None:
        self.stack = stack
        self.seen = Seen()
        self.script = script
        self._gates = list(gates)
        self._context = otel_context.get_current()

    def opened(self, stream: Any) -> Any:
        names = sorted(name for name in dir(stream) if not name.startswith("_"))
        self.seen.stream = (type(stream).__module__, type(stream).__qualname__, names)
        return stream

    def take(self, item: Any) -> None:
        seen = self.stack.look(item)
        self.seen.items.append((f"{type(item).__module__}.{type(item).__qualname__}", seen))
        # The stream was begun in this context and must not leave another one behind in the caller's block.
        self.seen.context_kept &= otel_context.get_current() == self._context
        if self._gates and f"w{LOCKSTEP - 1 - len(self._gates)} " in seen:
            self._gates.pop(0).open()

    @property
    def words(self) -> int:
        return sum(self.stack.is_word(text) for _, text in self.seen.items)

    def left(self, stream: Any) -> None:
        self.seen.closed.append(self.stack.closed(stream))

    def raised(self, error: BaseException) -> None:
        chain: list[str] = []
        seen: BaseException | None = error
        while seen is not None and len(chain) < 8:
            words = re.sub(r" at 0x[0-9a-f]+", "", str(seen))
            chain.append(f"{type(seen).__module__}.{type(seen).__qualname__}: {words}")
            seen = seen.__cause__
        self.seen.raised = tuple(chain)
        self.seen.context_kept &= otel_context.get_current() == self._context


def take_three(caller: Caller, items: Iterator[Any]) -> None:
    while caller.words < READ:
        caller.take(next(items))


async def take_three_async(caller: Caller, items: AsyncIterator[Any]) -> None:
    while caller.words < READ:
        caller.take(await anext(items))


def reads_all(caller: Caller, stack: Stack, client: Any) -> None:
    stream = caller.opened(stack.open(client))
    for item in stack.items(stream):
        caller.take(item)
    caller.left(stream)


async def reads_all_async(caller: Caller, stack: Stack, client: Any) -> None:
    stream = caller.opened(await stack.aopen(client))
    async for item in stack.aitems(stream):
        caller.take(item)
    caller.left(stream)


def pulls_all(caller: Caller, stack: Stack, client: Any) -> None:
    items = stack.pulls(caller.opened(stack.open(client)))
    while (item := next(items, caller)) is not caller:
        caller.take(item)


async def pulls_all_async(caller: Caller, stack: Stack, client: Any) -> None:
    items = stack.apulls(caller.opened(await stack.aopen(client)))
    with contextlib.suppress(StopAsyncIteration):
        while True:
            caller.take(await anext(items))


def raises(caller: Caller, stack: Stack, client: Any) -> None:
    with stack.entered(client) as stream:
        for item in stack.items(caller.opened(stream)):
            caller.take(item)
            if caller.words == READ:
                raise CallersOwnError("of the caller's own")


async def raises_async(caller: Caller, stack: Stack, client: Any) -> None:
    async with stack.aentered(client) as stream:
        async for item in stack.aitems(caller.opened(stream)):
            caller.take(item)
            if caller.words == READ:
                raise CallersOwnError("of the caller's own")


def raises_outside(caller: Caller, stack: Stack, client: Any) -> None:
    for item in stack.items(caller.opened(stack.open(client))):
        caller.take(item)
        if caller.words == READ:
            raise CallersOwnError("of the caller's own")


async def raises_outside_async(caller: Caller, stack: Stack, client: Any) -> None:
    async for item in stack.aitems(caller.opened(await stack.aopen(client))):
        caller.take(item)
        if caller.words == READ:
            raise CallersOwnError("of the caller's own")


def closes(caller: Caller, stack: Stack, client: Any) -> None:
    stream = caller.opened(stack.open(client))
    items = stack.pulls(stream)
    take_three(caller, items)
    stack.close(stream)
    caller.seen.kept.append(items)  # it is cancelled by `close`, not since the loop is dropped
    caller.left(stream)
    stack.close(stream)


async def closes_async(caller: Caller, stack: Stack, client: Any) -> None:
    stream = caller.opened(await stack.aopen(client))
    items = stack.apulls(stream)
    await take_three_async(caller, items)
    await stack.aclose(stream)
    caller.seen.kept.append(items)
    caller.left(stream)
    await stack.aclose(stream)


def leaves_with(caller: Caller, stack: Stack, client: Any) -> None:
    with stack.entered(client) as stream:
        take_three(caller, stack.pulls(caller.opened(stream)))
    caller.left(stream)


async def leaves_with_async(caller: Caller, stack: Stack, client: Any) -> None:
    async with stack.aentered(client) as stream:
        await take_three_async(caller, stack.apulls(caller.opened(stream)))
    caller.left(stream)


def breaks(caller: Caller, stack: Stack, client: Any) -> None:
    stream = caller.opened(stack.open(client))
    for item in stack.items(stream):
        caller.take(item)
        if caller.words == READ:
            break
    assert otel_llm.flush(WAIT_S)  # ended by the break, not by the events behind it
    caller.left(stream)
    stack.close(stream)


async def breaks_async(caller: Caller, stack: Stack, client: Any) -> None:
    stream = caller.opened(await stack.aopen(client))
    async for item in stack.aitems(stream):
        caller.take(item)
        if caller.words == READ:
            break
    assert otel_llm.flush(WAIT_S)
    caller.left(stream)
    await stack.aclose(stream)


def is_cancelled(caller: Caller, stack: Stack, client: Any) -> None:
    with stack.entered(client) as stream:
        for item in stack.items(caller.opened(stream)):
            caller.take(item)
            if caller.words == READ:
                raise KeyboardInterrupt


async def is_cancelled_async(caller: Caller, stack: Stack, client: Any) -> None:
    three = asyncio.Event()

    async def read() -> None:
        async for item in stack.aitems(caller.opened(await stack.aopen(client))):
            caller.take(item)
            if caller.words == READ:
                three.set()

    task = asyncio.create_task(read())
    await three.wait()
    await asyncio.sleep(0)  # it waits for the next one now
    task.cancel()
    await task


def drops(caller: Caller, stack: Stack, client: Any) -> None:
    stream = caller.opened(stack.open(client))
    items = stack.pulls(stream)
    take_three(caller, items)
    del stream, items
    gc.collect()


async def drops_async(caller: Caller, stack: Stack, client: Any) -> None:
    stream = caller.opened(await stack.aopen(client))
    items = stack.apulls(stream)
    await take_three_async(caller, items)
    del stream, items
    gc.collect()
    await asyncio.sleep(0)


def forgets(caller: Caller, stack: Stack, client: Any) -> None:
    caller.opened(stack.open(client))
    gc.collect()


async def forgets_async(caller: Caller, stack: Stack, client: Any) -> None:
    caller.opened(await stack.aopen(client))
    gc.collect()
    await asyncio.sleep(0)


def stands_still(script: Heads) -> None:
    """Wait until the server writes no more: its buffers and the client's are full, or it is through."""
    still, played = 0, -1
    while still < 10 and not script.over:
        still, played = (still + 1 if script.played == played else 0), script.played
        time.sleep(0.02)


def holds(caller: Caller, stack: Stack, client: Any) -> None:
    with stack.entered(client) as stream:
        take_three(caller, stack.pulls(caller.opened(stream)))
        stands_still(caller.script)
        caller.seen.read_ahead = caller.script.over


async def holds_async(caller: Caller, stack: Stack, client: Any) -> None:
    async with stack.aentered(client) as stream:
        await take_three_async(caller, stack.apulls(caller.opened(stream)))
        await asyncio.to_thread(stands_still, caller.script)
        caller.seen.read_ahead = caller.script.over


@dataclass(frozen=True)
class Case:
    """One way that a stream ends: what the server does, what the caller does, and what is to be recorded."""

    outcome: str
    tokens: int
    reply: Callable[[Stack, Gate], Sequence[Step]]
    sync: Callable[[Caller, Stack, Any], None]
    asynchronous: Callable[[Caller, Stack, Any], Any]
    status: int = 200


def whole(stack: Stack, _: Gate) -> list[Step]:
    return [*stack.before(), *stack.words(LOCKSTEP), *stack.after()]


def fails(stack: Stack, _: Gate) -> list[Step]:
    return [*stack.before(), *stack.words(READ), *stack.error()]


def cut(stack: Stack, _: Gate) -> list[Step]:
    return [*stack.before(), *stack.words(READ), Cut()]


def unfinished(stack: Stack, _: Gate) -> list[Step]:
    return [*stack.before(), *stack.words(READ), BodyEnd()]


def three_and_wait(stack: Stack, gate: Gate) -> list[Step]:
    return [*stack.before(), *stack.words(READ), gate, *stack.after()]


def too_much(stack: Stack, _: Gate) -> list[Step]:
    """Return far more than all buffers between the server and the caller hold (a few MB each way)."""
    [framing] = stack.words(1)
    return [*stack.before(), *stack.words(READ), *[framing] * 120_000, *stack.after()]


CASES: Mapping[str, Case] = {
    "end": Case("completed", LOCKSTEP, whole, reads_all, reads_all_async),
    "end, by next": Case("completed", LOCKSTEP, whole, pulls_all, pulls_all_async),
    "unfinished": Case("disconnected", READ, unfinished, reads_all, reads_all_async),
    "error": Case("error", READ, fails, reads_all, reads_all_async),
    "cut": Case("disconnected", READ, cut, reads_all, reads_all_async),
    "status": Case("error", 0, lambda *_: (), reads_all, reads_all_async, status=503),
    "caller": Case("cancelled", READ, three_and_wait, raises, raises_async),
    "caller, no with": Case("cancelled", READ, three_and_wait, raises_outside, raises_outside_async),
    "close": Case("cancelled", READ, three_and_wait, closes, closes_async),
    "with": Case("cancelled", READ, three_and_wait, leaves_with, leaves_with_async),
    "break": Case("cancelled", READ, three_and_wait, breaks, breaks_async),
    "cancel": Case("cancelled", READ, three_and_wait, is_cancelled, is_cancelled_async),
    "gc": Case("abandoned", READ, three_and_wait, drops, drops_async),
    "gc, unread": Case("abandoned", 0, three_and_wait, forgets, forgets_async),
}
"""By name; `end` is in lockstep: the server sends a word when the caller has got the one before."""

HOLDS = Case("cancelled", READ, too_much, holds, holds_async)
"""A caller that takes three of very many items and lets the rest wait."""


def lockstep(steps: Sequence[Step], words: int) -> tuple[list[Step], list[Gate]]:
    """Return the steps with a gate after each word but the last, and the gates."""
    gates = [Gate() for _ in range(words - 1)]
    out: list[Step] = []
    left = list(gates)
    for step in steps:
        out.append(step)
        if WORD.search(json.dumps(step, default=str)) and left:
            out.append(left.pop(0))
    return out, gates


def play(stack: Stack, case: Case, mode: str, server: SseServer, *, gated: bool = False) -> Seen:
    """Let a caller go through a case; return what it saw."""
    caller = _scripted(stack, case, server, gated=gated)
    try:
        if mode == "sync":
            with stack.client(server.url) as client:
                case.sync(caller, stack, client)
        else:
            asyncio.run(_play_async(stack, case, caller, server.url))
    except (Exception, KeyboardInterrupt, asyncio.CancelledError) as error:  # noqa: BLE001
        caller.raised(error)
    finally:
        caller.over()
    return caller.seen


def _scripted(stack: Stack, case: Case, server: SseServer, *, gated: bool = False) -> Caller:
    gate = Gate()
    steps = list(case.reply(stack, gate))
    gates: list[Gate] = []
    if gated:
        steps, gates = lockstep(steps, LOCKSTEP)
    caller = Caller(stack, Heads(steps), gates)
    caller.over = gate.open
    server.replies[MODEL] = Reply(caller.script, status=case.status)
    return caller


async def _play_async(stack: Stack, case: Case, caller: Caller, url: str) -> None:
    async with stack.aclient(url) as client:
        await case.asynchronous(caller, stack, client)


def once(stack: Stack, case: Case, client: Any, server: SseServer) -> None:
    """Let a caller of a client that goes on go through a case, and look at nothing."""
    caller = _scripted(stack, case, server)
    with contextlib.suppress(Exception):
        case.sync(caller, stack, client)
    caller.over()


async def once_async(stack: Stack, case: Case, client: Any, server: SseServer) -> None:
    """Do the same for an async client."""
    caller = _scripted(stack, case, server)
    with contextlib.suppress(Exception):
        await case.asynchronous(caller, stack, client)
    caller.over()


def expected(stack: Stack, name: str, mode: str) -> str:
    """Return the outcome of a case for a stack."""
    stated = stack.outcomes.get(f"{name}, {mode}") or stack.outcomes.get(name)
    return stated or CASES[name].outcome


def why_not(stack: Stack, name: str, mode: str) -> str | None:
    """Return why a case does not exist for a stack, None if it does."""
    return stack.skipped.get(f"{name}, {mode}") or stack.skipped.get(name)


@contextlib.contextmanager
def instrumented(stack: Stack, **settings: Any) -> Iterator[None]:
    """Record the stack's streams while the block runs."""
    otel_llm.instrument(**settings)
    instrumentor = stack.instrumentor()
    if instrumentor is not None and instrumentor.is_instrumented_by_opentelemetry:
        instrumentor = None
    try:
        if instrumentor is not None:
            instrumentor.instrument()
        yield
    finally:
        if instrumentor is not None:
            instrumentor.uninstrument()
        otel_llm.uninstrument()


def ends_as_bare(
    stack: Stack,
    case: Case,
    mode: str,
    server: SseServer,
    *,
    outcome: str | None = None,
    gated: bool = False,
    dropped: Callable[[Recorded], object] = lambda _: gc.collect(),
) -> Seen:
    """Assert that a case is recorded once, with its outcome, and that the caller sees what the bare library gives.

    `dropped` waits until what the caller dropped is collected. Returns what the caller saw.
    """
    bare = play(stack, case, mode, server, gated=gated)
    exporter = InMemorySpanExporter()
    sent = len(server.headers)
    with instrumented(stack, exporter=exporter):
        seen = play(stack, case, mode, server, gated=gated)
        assert seen == bare
        recorded = Recorded(exporter)
        dropped(recorded)
        stream = recorded.stream()
        [request] = recorded.requests()
    outcome = outcome or case.outcome
    attributes = dict(request.attributes or {})
    assert (stream.outcome, attributes[semconv.OUTCOME]) == (outcome, outcome)
    assert (stream.last[semconv.TOKENS], len(stream.times_ns)) == (case.tokens, case.tokens)
    assert attributes[semconv.SEGMENTS] == len(stream.segments)
    assert request.status.is_ok == (outcome not in {"error", "disconnected"})
    assert stream.parents == [ids(request.context)]
    trace_id, span_id = ids(request.context)
    carried = [dict(headers).get("traceparent") for headers in server.headers[sent:]]
    assert carried == [f"00-{trace_id:032x}-{span_id:016x}-01"]
    return bare
