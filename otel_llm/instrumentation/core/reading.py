"""The iterators between an application and its stream: one check, one clock reading and one append a chunk."""

from __future__ import annotations

from typing import TYPE_CHECKING, TypeVar

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, AsyncIterator, Generator, Iterator

    from otel_llm.instrumentation.core.recording import Recording
    from otel_llm.instrumentation.segments.choices import Reader

T = TypeVar("T")

# Both functions are one loop, written twice for `for` and `async for`; a chunk costs no more than the loop's body
# shows. GeneratorExit passes through unrecorded: it means that this generator was dropped, and the recording learns the
# reason from weak references.


def recorded(
    inner: Iterator[T], recording: Recording, owner: object = None, reader: Reader | None = None
) -> Generator[T, None, None]:
    """Yield what `inner` yields, recorded; raise what it raises.

    `owner` is kept alive meanwhile; `reader` is the recording's by default.
    """
    clock_ns = recording.clock_ns
    reader = reader or recording.reader
    plain_size = reader.plain_size
    try:
        for chunk in inner:
            now_ns = clock_ns()
            try:
                size = plain_size(chunk) if reader.plain else 0
                recording.append((now_ns, size or reader(chunk)))
            except Exception as bug:  # noqa: BLE001
                recording.broken(bug)
                yield chunk
                yield from inner
                return
            yield chunk
    except GeneratorExit:
        raise
    except BaseException as error:
        recording.failed(error)
        raise
    recording.exhausted(reader)
    del owner


async def recorded_async(
    inner: AsyncIterator[T], recording: Recording, owner: object = None, reader: Reader | None = None
) -> AsyncGenerator[T, None]:
    """Yield what `inner` yields, recorded; raise what it raises.

    `owner` is kept alive meanwhile; `reader` is the recording's by default.
    """
    clock_ns = recording.clock_ns
    reader = reader or recording.reader
    plain_size = reader.plain_size
    try:
        async for chunk in inner:
            now_ns = clock_ns()
            try:
                size = plain_size(chunk) if reader.plain else 0
                recording.append((now_ns, size or reader(chunk)))
            except Exception as bug:  # noqa: BLE001
                recording.broken(bug)
                yield chunk
                async for unrecorded in inner:
                    yield unrecorded
                return
            yield chunk
    except GeneratorExit:
        raise
    except BaseException as error:
        recording.failed(error)
        raise
    recording.exhausted(reader)
    del owner
