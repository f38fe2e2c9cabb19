"""The Dockerfile's steps, a pod of the chart and the compose file's services, run without an engine: in namespaces.

`support/deployment/container_init.py` does what an engine would: the image's files at their places, another user, no
privileges, a root file system that cannot be written to. Only an engine can show layers, pulls and how a builder
reads the Dockerfile.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import dataclass
from functools import reduce
from pathlib import Path
from typing import Any

import pytest
import yaml
from support.commands import wait_until
from support.deployment.charts import VALUES, place_files, pod_of, rendered
from support.deployment.containers import UID, Mount, Network, Running, container, network
from support.deployment.dockerfile import Stage, is_sent, read_stages
from support.integration.uv_command import ROOT, UV, installed_or_skipped
from support.otlp import IDENTITY, T0_NS, export, stream_spans

from otel_llm import semconv


@dataclass(frozen=True)
class Image:
    """What the steps made: the folder that is /opt/otel-llm in the image; and the stages of the Dockerfile."""

    opt: Path
    stages: dict[str, Stage]

    def mounts(self) -> list[Mount]:
        return [Mount(self.opt, "/opt/otel-llm"), Mount(uv_store(), str(uv_store()))]

    def environment(self) -> dict[str, str]:
        """Return the variables of the image."""
        env = self.stages["base"].environment()
        env["PATH"] = env["PATH"].replace("$PATH", "/usr/local/bin:/usr/bin:/bin")
        return env

    def command(self, target: str, arguments: list[str]) -> list[str]:
        """Return the command of a container: the entrypoint of a target, and arguments or else its own."""
        stage = self.stages[target]
        entrypoint = (stage if stage.texts("ENTRYPOINT") else self.stages["base"]).command("ENTRYPOINT")
        return [*entrypoint, *(arguments or stage.command("CMD"))]


def uv_store() -> Path:
    """Return the folder of uv's packages: the environment has links into it rather than copies."""
    return Path(subprocess.run([UV, "cache", "dir"], capture_output=True, text=True, check=True).stdout.strip())


def copy_sources(stage: Stage, target: Path) -> None:
    """Copy what a stage copies of the checkout to where it copies it."""
    for sources, place in stage.copies():
        for name in sources:
            path = ROOT / name.rstrip("/")
            if path.is_dir():
                shutil.copytree(path, target / place, ignore=shutil.ignore_patterns("__pycache__"))
            else:
                (target / place).mkdir(parents=True, exist_ok=True)
                shutil.copy(path, target / place)


def install(stages: dict[str, Stage], folder: Path) -> Image:
    """Run the steps of the stages `build` and `demo-build` as they stand, with uv in place of pip."""
    opt, source, scratch, store = folder / "opt", folder / "src", folder / "tmp", uv_store()
    for path in (opt, source, scratch):
        path.mkdir()
    copy_sources(stages["build"], source)
    variables = {"UV_LINK_MODE": "symlink", "UV_CACHE_DIR": str(store), "HOME": "/tmp", "PYTHONDONTWRITEBYTECODE": ""}
    given = {name: value for name, value in os.environ.items() if not name.startswith("OTEL_")}
    env = given | stages["build"].environment() | variables | {"PATH": f"{sys.base_prefix}/bin:/usr/bin:/bin"}
    kept = filter(os.path.isdir, os.environ.get("UV_FIND_LINKS", "").split(","))
    mounts = [
        *(Mount(Path(path), path) for path in ("/etc", *kept)),
        Mount(opt, "/opt/otel-llm", writable=True),
        Mount(source, "/src", writable=True),
        Mount(store, str(store), writable=True),
        Mount(scratch, "/tmp", writable=True),
        Mount(Path(UV), "/tools/uv"),
    ]
    instead = {
        "python -m venv": "python -m venv --without-pip",
        "/opt/otel-llm/bin/pip install --no-cache-dir": "/tools/uv pip install -q -p /opt/otel-llm",
    }
    for text in (*stages["build"].texts("RUN"), *stages["demo-build"].texts("RUN")):
        step = reduce(lambda so_far, words: so_far.replace(*words), instead.items(), text)
        command = container(folder, ["/bin/sh", "-ec", f"cd /src && {step}"], mounts, env, uid=0)
        installed_or_skipped(subprocess.run(command, capture_output=True, text=True, check=False))
    return Image(opt, stages)


DOCKERFILE = ROOT / "collector" / "docker" / "Dockerfile"
COMPOSE = ROOT / "collector" / "compose" / "compose.yaml"
TOKEN = "0123456789abcdef0123456789abcdef"


@pytest.fixture(scope="module")
def stages() -> dict[str, Stage]:
    return read_stages(DOCKERFILE)


@pytest.fixture(scope="module")
def image(stages: dict[str, Stage], tmp_path_factory: pytest.TempPathFactory) -> Image:
    return install(stages, tmp_path_factory.mktemp("image"))


def owned_folder(path: Path) -> Path:
    """Return a new folder of the container's user, as a volume is."""
    path.mkdir()
    os.chown(path, UID, UID)
    return path


def test_every_copied_source_is_there_and_sent_to_the_builder(stages: dict[str, Stage]) -> None:
    ignore_file = DOCKERFILE.with_name("Dockerfile.dockerignore")
    sources = [source.rstrip("/") for stage in stages.values() for sources, _ in stage.copies() for source in sources]
    assert len(sources) > 5
    for source in sources:
        assert (ROOT / source).exists(), source
        assert is_sent(source, ignore_file), source
    for other in (".venv-vllm", ".git", "demo-out", "docs", "examples/h200", "otel_llm/__pycache__", ".venv/lib"):
        assert not is_sent(other, ignore_file), other


def test_the_collectors_image_runs_as_it_is(image: Image, tmp_path: Path) -> None:
    """Its own command, without any option: as another user, with one folder to write to."""
    data = owned_folder(tmp_path / "data")
    with network(tmp_path) as net:
        mounts = [*image.mounts(), Mount(data, "/var/lib/otel-llm", writable=True)]
        collector = net.run("collector", image.command("collector", []), mounts, image.environment())
        net.wait_for("http://127.0.0.1:9464/readyz", collector)
        status = Path(f"/proc/{collector.process.pid}/status").read_text(encoding="ascii")
        assert re.search(rf"^Uid:\t{UID}\t{UID}\t{UID}\t{UID}$", status, re.MULTILINE)
        assert re.search(r"^CapEff:\t0+$", status, re.MULTILINE)
        assert writable_mounts(collector.process.pid) == {"/var/lib/otel-llm"}
        assert net.fetch("http://127.0.0.1:4318/v1/traces", body=a_stream("a"))[0] == 200
        assert collector.stop() == 0, collector.said()
        assert "--grpc 0.0.0.0:4317 can be reached from elsewhere" in collector.said()
        assert "compiling the kernels" not in collector.said(), "the image has them"
    assert list((data / "journal").glob("*.otlp*"))


def writable_mounts(pid: int) -> set[str]:
    """Return the places that a process sees and may write to, but for devices and processes."""
    mounts = [line.split() for line in Path(f"/proc/{pid}/mountinfo").read_text(encoding="utf-8").splitlines()]
    places = {place for _, _, _, _, place, options, *_ in mounts if "rw" in options.split(",")}
    return {place for place in places if not place.startswith(("/dev", "/proc"))}


def a_stream(instance: str, request: int = 1) -> bytes:
    """Return an export of a whole stream that an instance served."""
    identity = {**IDENTITY, semconv.INSTANCE: instance}
    spans = stream_spans([T0_NS + 10_000_000], end_ns=T0_NS + 20_000_000, request=request, identity=identity)
    return export(*spans).SerializeToString()


def test_a_pod_of_the_chart_runs_with_its_files_as_a_kubelet_lays_them(image: Image, tmp_path: Path) -> None:
    (values,) = (path for path in VALUES if path.name == "closed-values.yaml")
    chart = rendered([values])[values]
    pod = pod_of(chart["manifests"], "collector")
    (container,) = pod["containers"]
    secrets = {
        "otel-llm-tokens": {"tokens.txt": f"{TOKEN}\n", "token": TOKEN},
        "oncall": {"secret": "whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw\n"},
    }
    place_files(chart["manifests"], "collector", tmp_path / "etc", secrets)
    mounts = [
        *image.mounts(),
        Mount(owned_folder(tmp_path / "data"), "/var/lib/otel-llm", writable=True),
        *(Mount(folder, f"/etc/otel-llm/{folder.name}") for folder in (tmp_path / "etc").iterdir()),
    ]
    ports = {one["name"]: one["containerPort"] for one in container["ports"]}
    web = f"http://127.0.0.1:{ports['web']}"
    with network(tmp_path) as net:
        command = image.command("collector", container["args"])
        collector = net.run("collector", command, mounts, image.environment())
        for probe in ("startupProbe", "livenessProbe", "readinessProbe"):
            net.wait_for(f"{web}{container[probe]['httpGet']['path']}", collector)
        traces = f"http://127.0.0.1:{ports['otlp-http']}/v1/traces"
        assert net.fetch(traces, body=a_stream("vllm-0"))[0] == 401
        for request, instance in enumerate(("vllm-0", "not listed"), 1):
            assert net.fetch(traces, token=TOKEN, body=a_stream(instance, request))[0] == 200

        def counted() -> set[str]:
            return set(re.findall(r'\binstance="([^"]*)"', net.fetch(f"{web}/metrics")[1]))

        wait_until("both streams are counted", lambda: counted() == {"vllm-0", "other"})
        collector.process.send_signal(signal.SIGHUP)
        assert collector.stop() == 0, collector.said()


@pytest.fixture(scope="module")
def compose() -> dict[str, Any]:
    found = yaml.safe_load(COMPOSE.read_text(encoding="utf-8"))
    assert isinstance(found, dict)
    return found


OURS = ("collector", "model-a", "model-b", "pager", "relay", "app", "readers")
"""The services of compose.yaml that are built here, each before those that need it."""


@pytest.fixture
def stack(image: Image, compose: dict[str, Any], tmp_path: Path) -> Iterator[tuple[Network, dict[str, Running]]]:
    """Run the services that are built, with their commands, variables, users and mounts.

    Each listens on an address of its own in one network: `0.0.0.0` becomes this address. The rest is as it stands.
    """
    services = compose["services"]
    with ExitStack() as exits:
        net = exits.enter_context(network(tmp_path, OURS))
        running: dict[str, Running] = {}
        for name in OURS:
            service = services[name]
            for needed in service.get("depends_on", {}):
                _, _, _, script = services[needed]["healthcheck"]["test"]
                url = re.findall(r"http://[^']+", script)[0].replace("127.0.0.1", net.hosts[needed])
                net.wait_for(url, running[needed])
            arguments = [word.replace("0.0.0.0", net.hosts[name]) for word in service["command"]]
            env = image.environment() | {key: str(value) for key, value in service.get("environment", {}).items()}
            env = {key: re.sub(r"\$\{\w+:-(\w+)\}", r"\1", value) for key, value in env.items()}
            mounts = [*image.mounts(), *mounts_of(service, tmp_path / f"volumes-{name}")]
            if service["build"]["target"] == "demo":
                mounts.append(Mount(ROOT / "examples" / "chat-app", "/opt/chat-app"))
            uid = int(service["user"].split(":")[0])
            command = image.command(service["build"]["target"], arguments)
            running[name] = net.run(name, command, mounts, env, uid=uid)
        yield net, running


def mounts_of(service: dict[str, Any], volumes: Path) -> list[Mount]:
    """Return the mounts of a service; those of named volumes are folders of its user."""
    found = []
    for text in service.get("volumes", []):
        source, target, *mode = text.split(":")
        if source.startswith("."):
            assert mode == ["ro"], text
            found.append(Mount((COMPOSE.parent / source).resolve(), target))
        else:
            volumes.mkdir(exist_ok=True)
            found.append(Mount(owned_folder(volumes / source), target, writable=True))
    return found


def test_the_services_of_compose_find_each_other(stack: tuple[Network, dict[str, Running]]) -> None:
    """Readers and the chat ask the relay, it asks both models, and the collector hears of all of them."""
    net, running = stack
    collector, app = (f"http://{net.hosts[name]}" for name in ("collector", "app"))
    net.wait_for(f"{app}:8000/models", running["app"])
    models = net.fetch(f"{app}:8000/models")[1]
    assert '"stall-empty-buffer"' in models

    def seen() -> bool:
        text = net.fetch(f"{collector}:9464/metrics")[1]
        series = re.findall(r"^otel_llm_streams_in_flight\{(.*)\}", text, re.MULTILINE)
        labels = {(pair, value) for line in series for pair, value in re.findall(r'(\w+)="([^"]*)"', line)}
        wanted = {("instance", "model-a"), ("instance", "model-b"), ("measured_at", "relay"), ("measured_at", "client")}
        return wanted <= labels

    wait_until("streams of both models, of the relay and of its clients", seen)
    alert = {"status": "firing", "labels": {"alertname": "A"}, "annotations": {"summary": "who\u202ewaits"}}
    pager = f"http://{net.hosts['pager']}:9099/page"
    assert net.fetch(pager, body=json.dumps({"alerts": [alert]}).encode())[0] == 204
    assert "/page    FIRING   A {}  who\\u202ewaits" in running["pager"].said()
    assert not [name for name, one in running.items() if one.process.poll() not in (None, 0)]
    assert running["relay"].process.poll() is None


def test_the_dashboards_and_rules_go_where_their_programs_look(compose: dict[str, Any]) -> None:
    """Mounts of collector/prometheus, alertmanager and grafana: options name files that are in them."""
    folders = {}
    for name in ("prometheus", "alertmanager", "grafana"):
        for text in compose["services"][name]["volumes"]:
            source, target, *_ = text.split(":")
            if source.startswith("."):
                folders[target] = (COMPOSE.parent / source).resolve()
    assert {path.relative_to(ROOT / "collector").as_posix() for path in folders.values()} == {
        *("prometheus", "alertmanager", "grafana/provisioning", "grafana/dashboards"),
    }
    options = [word for name in ("prometheus", "alertmanager") for word in compose["services"][name]["command"]]
    for option in options:
        path = Path(option.partition("=")[2])
        if option.startswith("--config.file="):
            assert (folders[str(path.parent)] / path.name).is_file(), option
