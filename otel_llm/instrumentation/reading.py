"""The iterators between an application and its stream: per chunk one look, one clock read and one append."""

from __future__ import annotations

from typing import TYPE_CHECKING, TypeVar

from otel_llm.instrumentation.chunks import FRAMING

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, AsyncIterator, Callable, Generator, Iterator

    from otel_llm.instrumentation.chunks import Reading
    from otel_llm.instrumentation.recording import Recording

T = TypeVar("T")

# Both functions are one loop, written twice for `for` and `async for`; what they must not do is pay for a chunk more
# than the loop's body shows. GeneratorExit passes through unremarked: it says that this generator was dropped, and the
# recording learns from weak references why.


def recorded(inner: Iterator[T], recording: Recording, owner: object = None) -> Generator[T, None, None]:
    """Yield what `inner` yields, recorded; raise what it raises. `owner` is kept alive for as long."""
    clock_ns = recording.clock_ns
    read: Callable[[object], Reading] = recording.reader
    try:
        for chunk in inner:
            now_ns = clock_ns()
            try:
                reading = read(chunk)
                recording.append(now_ns if reading is None else (now_ns, reading))
            except Exception as bug:  # noqa: BLE001
                recording.broken(bug)
                read = _ignore
            yield chunk
    except GeneratorExit:
        raise
    except BaseException as error:
        recording.failed(error)
        raise
    recording.exhausted()
    del owner


async def recorded_async(
    inner: AsyncIterator[T], recording: Recording, owner: object = None
) -> AsyncGenerator[T, None]:
    """Yield what `inner` yields, recorded; raise what it raises. `owner` is kept alive for as long."""
    clock_ns = recording.clock_ns
    read: Callable[[object], Reading] = recording.reader
    try:
        async for chunk in inner:
            now_ns = clock_ns()
            try:
                reading = read(chunk)
                recording.append(now_ns if reading is None else (now_ns, reading))
            except Exception as bug:  # noqa: BLE001
                recording.broken(bug)
                read = _ignore
            yield chunk
    except GeneratorExit:
        raise
    except BaseException as error:
        recording.failed(error)
        raise
    recording.exhausted()
    del owner


def _ignore(_: object) -> Reading:
    """Read nothing, for the rest of a stream that a failure of ours ended the recording of."""
    return FRAMING
