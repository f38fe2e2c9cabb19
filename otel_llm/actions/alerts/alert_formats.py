"""The formats of an alert: Alertmanager's JSON, a CloudEvent for a webhook, a line of a log."""

from __future__ import annotations

import hashlib
import json
import re
from typing import TYPE_CHECKING, Any, Final

from otel_llm.actions.execute.events import rfc3339
from otel_llm.rules.decisions.decision_records import shown

if TYPE_CHECKING:
    from otel_llm.actions.alerts.firing import Alert, Event
    from otel_llm.actions.alerts.places import Key

EVENT_TYPE: Final = "io.otel_llm.alert."
"""The prefix of an event's type; `firing.v1` or `resolved.v1` follows."""
_NOT_IN_LABELS: Final = re.compile(r"[^a-zA-Z0-9_]")
_NOUNS: Final = {"stream": ("stream", "streams"), "instance": ("instance", "instances"), "class": ("class", "classes")}


def label_name(name: str) -> str:
    """Return a name as a Prometheus label: dots, which are refused there, become underscores."""
    plain = _NOT_IN_LABELS.sub("_", name)
    return f"_{plain}" if plain[:1].isdigit() else plain


def labels_of(key: Key) -> dict[str, str]:
    """Return the labels of an alert."""
    return {label_name(name): value for name, value in key}


def annotations_of(alert: Alert) -> dict[str, str]:
    """Return the annotations of an alert: how many fire, since when, why, and a few of them to look at."""
    one, many = _NOUNS[alert.scope]
    noun = one if alert.count == 1 else many
    rules = ", ".join(alert.rules)
    reported = {
        "summary": f"{rules}: {alert.count} {noun} now, {alert.total} since {rfc3339(alert.starts_ns)}",
        "count": str(alert.count),
        "total": str(alert.total),
        "rules": rules,
        "facts": ", ".join(f"{fact} {shown(value)}" for fact, value in alert.facts.items()),
    }
    if alert.samples:
        reported["trace_ids"] = ", ".join(alert.samples)
    return reported


def for_alertmanager(alert: Alert, now_ns: int, valid_ns: int) -> dict[str, Any]:
    """Return one entry of `POST /api/v2/alerts`; one that fires is valid for `valid_ns` from now, until sent again."""
    ends_ns = now_ns + valid_ns if alert.ends_ns is None else alert.ends_ns
    return {
        "labels": labels_of(alert.key),
        "annotations": annotations_of(alert),
        "startsAt": rfc3339(min(alert.starts_ns, ends_ns)),
        "endsAt": rfc3339(ends_ns),
    }


def event_id(event: Event) -> str:
    """Return the id of the beginning or the end of an alert: the same after a restart, without dots."""
    text = json.dumps([event.alert.key, event.alert.starts_ns, event.status], ensure_ascii=True, separators=(",", ":"))
    return "alert_" + hashlib.sha256(text.encode()).hexdigest()[:32]


def line_of(event: Event) -> dict[str, Any]:
    """Return the line of the log for the beginning or the end of an alert."""
    alert = event.alert
    return {
        "id": event_id(event),
        "status": event.status,
        "starts_unix_nano": alert.starts_ns,
        "ends_unix_nano": alert.ends_ns if event.status == "resolved" else None,
        "labels": labels_of(alert.key),
        "annotations": annotations_of(alert),
    }


def cloud_event_of(line: dict[str, Any], source: str, now_ns: int) -> bytes:
    """Return the body of a webhook: the line as the data of a CloudEvent in structured mode."""
    ends_ns = line["ends_unix_nano"]
    event = {
        "specversion": "1.0",
        "id": line["id"],
        "source": source,
        "type": f"{EVENT_TYPE}{line['status']}.v1",
        "subject": f"alert/{line['labels']['alertname']}",
        "time": rfc3339(now_ns),
        "datacontenttype": "application/json",
        "data": {
            "status": line["status"],
            "labels": line["labels"],
            "annotations": line["annotations"],
            "starts_at": rfc3339(line["starts_unix_nano"]),
            "ends_at": None if ends_ns is None else rfc3339(ends_ns),
        },
    }
    return json.dumps(event, separators=(",", ":"), ensure_ascii=False).encode()
