"""The metadata of a Parquet table of requests: the parts of a report that are not in its rows."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

KEY: Final = b"otel_llm.audit"
"""The key in the file's schema; its value is a JSON object."""
_MEMBERS: Final = ("summary", "skipped", "counts", "inputs", "window_ns")


def encode(
    summary: Mapping[str, Any],
    skipped: Mapping[str, int],
    counts: Mapping[str, int],
    inputs: Sequence[str],
    window_ns: int,
) -> dict[bytes, bytes]:
    """Return the metadata; `skipped` and `counts` by name, without zeros."""
    members = {
        "summary": summary,
        "skipped": {name: count for name, count in sorted(skipped.items()) if count},
        "counts": {name: count for name, count in sorted(counts.items()) if count},
        "inputs": list(inputs),
        "window_ns": window_ns,
    }
    return {KEY: json.dumps(members, allow_nan=False).encode("utf-8", "backslashreplace")}


def decode(metadata: Mapping[bytes, bytes]) -> dict[str, Any]:
    """Return the members of the metadata, none if there is none.

    Raises:
        ValueError: it is not as `encode` writes it.
    """
    encoded = metadata.get(KEY)
    if encoded is None:
        return {}
    try:
        members = json.loads(encoded)
        return {name: members[name] for name in _MEMBERS}
    except (KeyError, TypeError) as error:
        raise ValueError(f"a member is missing: {error}") from error
