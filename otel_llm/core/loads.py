"""Loads of one or eight bytes from an array of bytes, as signed 64-bit integers.

Compiled, a load is one instruction without a bounds check: the caller has compared the index with the end of the
message. In plain Python an index outside of the array is an IndexError.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from otel_llm.core.kernel import COMPILED

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt

    Bytes = npt.NDArray[np.uint8]

if TYPE_CHECKING or not COMPILED:

    def byte(data: Bytes, at: int) -> int:
        """Return the byte at an index."""
        if at < 0:
            raise IndexError(at)
        return int(data[at])

    def word(data: Bytes, at: int) -> int:
        """Return the eight bytes from an index on, as a little-endian signed integer."""
        if at < 0 or at + 8 > len(data):
            raise IndexError(at)
        return int.from_bytes(data[at : at + 8].tobytes(), "little", signed=True)

else:
    from llvmlite import ir
    from numba.core import types
    from numba.extending import intrinsic

    def _load(context: Any, builder: Any, array_type: Any, arguments: Any, bits: int) -> Any:
        data = context.make_array(array_type)(context, builder, arguments[0])
        pointer = builder.gep(data.data, [arguments[1]])
        loaded = builder.load(builder.bitcast(pointer, ir.IntType(bits).as_pointer()))
        loaded.align = 1
        return builder.zext(loaded, ir.IntType(64)) if bits < 64 else loaded

    @intrinsic
    def byte(_typing: Any, data: Any, at: Any) -> Any:  # noqa: ARG001  numba reads the names
        """Return the byte at an index."""
        return types.int64(data, types.int64), lambda context, builder, signature, arguments: _load(
            context, builder, signature.args[0], arguments, 8
        )

    @intrinsic
    def word(_typing: Any, data: Any, at: Any) -> Any:  # noqa: ARG001
        """Return the eight bytes from an index on, as a little-endian signed integer."""
        return types.int64(data, types.int64), lambda context, builder, signature, arguments: _load(
            context, builder, signature.args[0], arguments, 64
        )
