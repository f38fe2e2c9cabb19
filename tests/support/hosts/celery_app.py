"""A Celery application whose one task reads a streamed reply; its broker is the folder `CELERY_FOLDER`."""

from __future__ import annotations

import os
from pathlib import Path

from celery import Celery

import otel_llm

folder = Path(os.environ["CELERY_FOLDER"])
queue, control = folder / "queue", folder / "control"
for path in (queue, control):
    path.mkdir(parents=True, exist_ok=True)
app = Celery(
    "hosts",
    broker="filesystem://",
    broker_transport_options={
        "data_folder_in": str(queue),
        "data_folder_out": str(queue),
        "control_folder": str(control),
    },
    broker_connection_retry_on_startup=True,
    worker_prefetch_multiplier=1,
)
otel_llm.instrument()


@app.task  # type: ignore[untyped-decorator]
def ask(model: str) -> None:
    from support.hosts.gateway import words

    for _ in words(model):
        pass
    (folder / f"done-{model}").touch()
