"""Debian's Alertmanager as a process that can be stopped and started again, telling a webhook of a test."""

from __future__ import annotations

import json
import subprocess
import urllib.error
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from support.actions.action_receiver import Receiver
from support.commands import wait_until
from support.patience import WAIT_S
from support.ports import free_ports
from support.requirements import found_program

CONFIG = """
route: {receiver: hook, group_by: [alertname], group_wait: 500ms, group_interval: 1s, repeat_interval: 24h}
receivers: [{name: hook, webhook_configs: [{url: 'HOOK', send_resolved: true}]}]
inhibit_rules:
- {source_matchers: ['alertname="InstanceDraining"'], target_matchers: ['alertname="Starving"'], equal: [instance]}
"""


def program() -> str:
    """Return where Alertmanager is; skip the test if it is not installed."""
    return found_program("alertmanager", "prometheus-alertmanager")


@dataclass
class Alertmanager:
    """One Alertmanager in a folder, on the same port at every start, and the webhook that it tells."""

    folder: Path
    hook: Receiver
    config: str = CONFIG
    """Its configuration; HOOK stands for the webhook's address."""
    port: int = field(default_factory=lambda: free_ports(1)[0])
    process: subprocess.Popen[bytes] | None = None

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    def start(self) -> None:
        """Start it and wait until it answers."""
        config = self.folder / "alertmanager.yml"
        config.write_text(self.config.replace("HOOK", self.hook.url), encoding="utf-8")
        command = [
            *(program(), f"--config.file={config}", f"--storage.path={self.folder / 'alertmanager'}"),
            *(f"--web.listen-address=127.0.0.1:{self.port}", "--cluster.listen-address="),
        ]
        log = self.folder / "alertmanager.log"
        with log.open("ab") as file:
            process = self.process = subprocess.Popen(command, stdout=file, stderr=file)
        wait_until("Alertmanager is ready", lambda: self._ready() or process.poll() is not None)
        assert process.poll() is None, log.read_text()

    def stop(self) -> None:
        """SIGTERM: it writes down what it has told."""
        if self.process is None or self.process.poll() is not None:
            return
        self.process.terminate()
        try:
            self.process.wait(20)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()

    def alerts(self) -> dict[str, Any]:
        """Return the alerts that it has, by `alertname/instance`."""
        return {
            f"{one['labels']['alertname']}/{one['labels'].get('instance', '')}": one
            for one in self.ask("/api/v2/alerts")
        }

    def silence(self, name: str, value: str) -> None:
        """Silence what has a label."""
        matcher = {"name": name, "value": value, "isRegex": False, "isEqual": True}
        times = {"startsAt": "2020-01-01T00:00:00Z", "endsAt": "2099-01-01T00:00:00Z"}
        said = {"matchers": [matcher], **times, "createdBy": "test", "comment": "test"}
        assert "silenceID" in self.ask("/api/v2/silences", said)

    def told(self) -> list[tuple[str, list[str]]]:
        """Return what it told the webhook: `status of the group`, and `status/instance` of each alert in it."""
        with self.hook.lock:
            bodies = [json.loads(one.body) for one in self.hook.came]
        return [
            (
                body["groupLabels"]["alertname"],
                sorted(f"{one['status']}/{one['labels'].get('instance', '')}" for one in body["alerts"]),
            )
            for body in bodies
        ]

    def ask(self, path: str, body: Any = None) -> Any:
        """GET, or POST a body."""
        data = None if body is None else json.dumps(body).encode()
        request = urllib.request.Request(f"{self.url}{path}", data, {"Content-Type": "application/json"})
        with urllib.request.urlopen(request, timeout=WAIT_S) as answer:
            said = answer.read()
        return json.loads(said) if said else None

    def _ready(self) -> bool:
        with suppress(urllib.error.URLError, OSError), urllib.request.urlopen(f"{self.url}/-/ready", timeout=5):
            return True
        return False


@contextmanager
def alertmanager(folder: Path, hook: Receiver, config: str = CONFIG) -> Iterator[Alertmanager]:
    """Run Alertmanager in a folder."""
    made = Alertmanager(folder, hook, config)
    try:
        made.start()
        yield made
    finally:
        made.stop()
