"""The alerts that a restart needs: those that were sent, and messages in delivery, in one file beside the journal."""

from __future__ import annotations

import json
import logging
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final

from otel_llm.actions.alerts.firing import Alert
from otel_llm.actions.delivery.durable_queue import Message
from otel_llm.rules.decisions.output_file import read_inside
from otel_llm.shared.whole_files import replace_whole

if TYPE_CHECKING:
    from pathlib import Path

STATE_FILE: Final = "alerts.json"
VERSION: Final = 1
_KEPT: Final = ("scope", "starts_ns", "empty_ns", "ends_ns", "total", "rules", "samples", "facts")
_log = logging.getLogger(__name__)


@dataclass(slots=True)
class State:
    """The contents of the file; `saved_ns`: it covers every decision until then, None where there was no file."""

    saved_ns: int | None = None
    alerts: list[Alert] = field(default_factory=list)
    messages: list[Message] = field(default_factory=list)


def state_bytes(state: State) -> bytes:
    """Return the file's contents. The members of an alert are not in it: they come from the journal, read again."""
    alerts = [{"labels": dict(one.key), **{name: getattr(one, name) for name in _KEPT}} for one in state.alerts]
    messages = [message.record() for message in state.messages]
    whole = {"version": VERSION, "saved_ns": state.saved_ns, "alerts": alerts, "messages": messages}
    return json.dumps(whole, separators=(",", ":")).encode() + b"\n"


def write_state(folder: Path, data: bytes) -> None:
    """Replace the file; raises OSError where it cannot be written, and then leaves the old one in place."""
    replace_whole(folder / STATE_FILE, data, durable=False)


def read_state(folder: Path) -> State:
    """Return the saved state; an empty state where there is no file, or (logged) a broken one."""
    path = folder / STATE_FILE
    try:
        whole = json.loads(_contents(path))
        return state_of(whole)
    except FileNotFoundError:
        return State()
    except (OSError, ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        _log.warning("%s: cannot be used: %s; alerts that fire are sent again", path, error)
        return State()


def _contents(path: Path) -> bytes:
    with read_inside(path) as file:
        return file.readall()


def state_of(whole: dict[str, Any]) -> State:
    """Return what the file's JSON says. Raises ValueError, KeyError, TypeError or AttributeError where it is broken."""
    if whole["version"] != VERSION:
        raise ValueError(f"version {whole['version']}")
    alerts = [_alert(one) for one in whole["alerts"]]
    return State(int(whole["saved_ns"]), alerts, [Message(**one) for one in whole["messages"]])


def _alert(one: dict[str, Any]) -> Alert:
    key = tuple(sorted((str(name), str(value)) for name, value in one["labels"].items()))
    return Alert(key, **{name: one[name] for name in _KEPT})
