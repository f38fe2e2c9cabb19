"""A fleet in trouble, as the shipped files monitor it: collector, relay, load, Prometheus, Alertmanager and a receiver.

Replica `b` stalls, `c` is not there, some replies break off, some requests find no place, spans are malformed, and the
collector asks the relay to drain `b`.
"""

from __future__ import annotations

import shutil
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path

import yaml
from support.actions.action_receiver import Receiver, receiving
from support.actions.alertmanager import Alertmanager
from support.actions.alertmanager import program as alertmanager_program
from support.commands import environment, wait_until
from support.integration.interop_prometheus import Prometheus, program, started
from support.integration.interop_service import Service, load
from support.otlp import export, segment_span
from support.patience import WAIT_S
from support.ports import free_ports
from support.relay.process import Relay, relay
from support.relay.signed_actions import write_secret

from otel_llm.demo.children import Child
from otel_llm.demo.demo_children import paced_server, paced_url, telemetry

ROOT = Path(__file__).parents[3]
SHIPPED = ROOT / "collector"
RULES = """\
version: 1
groups:
- name: replicas
  scope: instance
  rules:
  - rule: OneHasReaders
    when: 'instance == "b" && measured_at == "relay" && streams > 0'
    keep_firing_for: 10m
    actions:
    - drain: {}
      mode: enforce
      ttl: 20s
"""
RELAY_SETTINGS = """\
version: 1
queue: {in_flight: 8, order: fcfs, max_waiting: 2}
actions: {secret_file: relay.secret}
"""
STALLS = ("--stall-every", "1", "--stall-after", "8", "--stall-for", "8")
CROWDS = (
    # Room for all of them: those of `b` have text for 1.6 s, and are moved before they wait.
    ("healthy", 6, 30),
    # More than there is room for, drained or not: `a` and `b` take eight each, and two more may wait. They last, so
    # that the first are still there when the last ask, on a busy machine too.
    ("healthy", 24, 60),
    # Last: three replies that break off have a replica ejected, and then there is none to move to.
    ("disconnect", 4, 60),
)
"""One after the other: model, readers, tokens of each."""


@dataclass
class Fleet:
    """What runs, in a folder; ports are chosen at the beginning."""

    folder: Path
    receiver: Receiver
    alertmanager: Alertmanager
    collector: Service
    relay_port: int = field(default_factory=lambda: free_ports(1)[0])

    @property
    def addresses(self) -> dict[str, str]:
        """The addresses of the shipped files, and those of this fleet."""
        return {
            "collector:9464": f"127.0.0.1:{self.collector.ports[2]}",
            "relay:9465": f"127.0.0.1:{self.relay_port}",
            "alertmanager:9093": f"127.0.0.1:{self.alertmanager.port}",
        }


def alertmanager_config(**times: str) -> str:
    """Return the shipped configuration with the address of a test's receiver, HOOK, and other times."""
    config = yaml.safe_load((SHIPPED / "alertmanager" / "alertmanager.yml").read_text(encoding="utf-8"))
    for route in (config["route"], *config["route"]["routes"]):
        route.update(times)
    for receiver in config["receivers"]:
        for hook in receiver["webhook_configs"]:
            hook["url"] = hook["url"].replace("http://pager:9099", "HOOK")
    return yaml.safe_dump(config)


def prometheus_config(folder: Path, addresses: dict[str, str]) -> str:
    """Return the shipped configuration with other addresses; it asks every second, as do its rules, in `folder`."""
    (folder / "rules").mkdir()
    for path in (SHIPPED / "prometheus" / "rules").glob("*.yml"):
        written = yaml.safe_load(path.read_text(encoding="utf-8"))
        for group in written["groups"]:
            group.pop("interval", None)
        (folder / "rules" / path.name).write_text(yaml.safe_dump(written), encoding="utf-8")
    text = (SHIPPED / "prometheus" / "prometheus.yml").read_text(encoding="utf-8")
    for name, address in addresses.items():
        assert text.count(f'"{name}"') == 1, name
        text = text.replace(f'"{name}"', f'"{address}"')
    assert text.count(": 15s") == 2
    return text.replace(": 15s", ": 1s")


@contextmanager
def fleet(folder: Path) -> Iterator[tuple[Fleet, Prometheus]]:
    """Run all of it under load, until the readers of the relay have got their replies."""
    program("prometheus")
    alertmanager_program()
    with ExitStack() as stack:
        receiver = stack.enter_context(receiving(Receiver()))
        manager = Alertmanager(folder, receiver, alertmanager_config(group_wait="200ms", group_interval="1s"))
        running = Fleet(folder, receiver, manager, Service(folder))
        # First, since it needs seconds until it scrapes; what increased before that is no increase to it.
        watching = stack.enter_context(started(folder, prometheus_config(folder, running.addresses)))
        servers = [
            stack.enter_context(paced_server(folder / f"{name}.log", *options))
            for name, options in (("a", ()), ("b", STALLS))
        ]
        stack.callback(manager.stop)
        manager.start()
        stack.enter_context(_collector(running))
        urls = [paced_url(server).removesuffix("/v1") for server in servers]
        through = stack.enter_context(_relay(running, [*urls, f"http://127.0.0.1:{free_ports(1)[0]}"]))
        both = 'sum(up) + sum(otel_llm_relay_backend_open{instance=~"a|b"})'
        wait_until("both are scraped, and two replicas are open", lambda: watching.query(both) == {(): 4.0})
        stack.enter_context(load(running.collector.grpc, folder / "acks.json", "--streams", "24", "--mean-s", "1.5"))
        _spoil(running.collector)
        for crowd in CROWDS:
            readers = stack.enter_context(_readers(running, through, *crowd))
            assert readers.process.wait(WAIT_S) == 0, readers.log.read_text()
        yield running, watching


@contextmanager
def _collector(running: Fleet) -> Iterator[None]:
    folder = running.folder
    write_secret(folder)
    (folder / "rules.yaml").write_text(RULES, encoding="utf-8")
    relay_url = f"http://127.0.0.1:{running.relay_port}"
    engine = {"kind": "relay", "instances": {"*": relay_url}, "secret_file": "relay.secret"}
    settings = {
        "version": 1,
        "metrics": {"instance_label": True, "instances": ["a", "b", "c", *(f"gpu-{number}" for number in range(4))]},
        "alertmanager": {"urls": [running.alertmanager.url], "resend": "1s"},
        "alerts": {"settle": "1s"},
        "actions": {"engines": {"front": engine}},
    }
    (folder / "settings.yaml").write_text(yaml.safe_dump(settings), encoding="utf-8")
    files = ("--rules", folder / "rules.yaml", "--rules", ROOT / "rules" / "chat.yaml")
    running.collector.options = [*map(str, ("--config", folder / "settings.yaml", *files)), "--lateness", "1s"]
    running.collector.start()
    try:
        running.collector.wait_ready()
        yield
    finally:
        running.collector.kill()


@contextmanager
def _relay(running: Fleet, backends: list[str]) -> Iterator[Relay]:
    folder = running.folder
    (folder / "relay.yaml").write_text(RELAY_SETTINGS, encoding="utf-8")
    shutil.copy(ROOT / "examples" / "relay" / "rules.yaml", folder / "relay-rules.yaml")
    arguments = [f"--backend={name}={url}" for name, url in zip("abc", backends, strict=True)]
    arguments += ["--config", str(folder / "relay.yaml"), "--rules", str(folder / "relay-rules.yaml")]
    more = telemetry(running.collector.grpc, "relay")
    with relay(*arguments, "--web", f"127.0.0.1:{running.relay_port}", more=more) as through:
        yield through


def _readers(running: Fleet, through: Relay, model: str, readers: int, tokens: int) -> Child:
    name = f"{readers}-{model}"
    command = [
        *(sys.executable, "-m", "otel_llm.demo.demo_readers", f"{through.url}/v1", "--model", model),
        *("--replies", str(running.folder / f"{name}.jsonl"), "--readers", str(readers)),
        *("--max-tokens", str(tokens), "--within", "0.1"),
    ]
    env = environment() | telemetry(running.collector.grpc, "readers")
    return Child(f"readers {name}", command, env, running.folder / f"{name}.log")


def _spoil(collector: Service) -> None:
    """Send what cannot be decoded, a span without its number, and a token behind the end of its segment."""
    now_ns = time.time_ns()
    late = segment_span(1, 0, [now_ns + 9], request=901, start_ns=now_ns, end_ns=now_ns + 5)
    for body in (b"\xff", export(segment_span(None, request=900), late).SerializeToString()):
        headers = {"Content-Type": "application/x-protobuf"}
        request = urllib.request.Request(f"http://127.0.0.1:{collector.ports[1]}/v1/traces", body, headers)
        with suppress(urllib.error.HTTPError):
            urllib.request.urlopen(request, timeout=WAIT_S).close()
