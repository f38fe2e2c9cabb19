"""The Helm chart: templates for five files of values against Kubernetes' schemas, and the settings in them."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest
import yaml
from support.collector.tls_files import authority, signed
from support.deployment.charts import CHART, ROOT, VALUES, Manifest, of_kind, place_files, pod_of, rendered
from support.integration.interop_prometheus import program

from otel_llm.actions.execute.executors import RELAY_DOES
from otel_llm.collector.settings import load_settings
from otel_llm.export.endpoints import listed_settings
from otel_llm.relay.settings import load_settings as load_relay_settings
from otel_llm.rules.files.load import load_rules
from otel_llm.rules.files.slo_file import load_slo

NAMES = [path.name.removesuffix("-values.yaml") for path in VALUES]
GATEWAY = ROOT / "collector" / "otelcol" / "gateway.yaml"
TOKEN = "0123456789abcdef0123456789abcdef"
SIGNING = "whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw\n"

CUSTOM = {
    "ServiceMonitor": {"selector": {"matchLabels"}, "endpoints": None},
    "PrometheusRule": {"groups": None},
}
"""Custom resources of the Prometheus operator, which Kubernetes' schemas do not have: the keys of their `spec`."""
ENDPOINT_KEYS = {
    *("port", "interval", "honorLabels", "authorization", "scheme", "tlsConfig", "relabelings", "metricRelabelings"),
}
"""Those of the operator's `Endpoint` (API monitoring.coreos.com/v1) that are used."""


@pytest.fixture(scope="module")
def charts() -> dict[str, Manifest]:
    found = rendered(VALUES)
    return {name: found[path] for name, path in zip(NAMES, VALUES, strict=True)}


def secrets() -> dict[str, dict[str, str]]:
    """Return the secrets that the files of values name."""
    tokens = {"tokens.txt": f"{TOKEN}\n", "token": TOKEN}
    operators = {"tokens.txt": "sk-a-client-of-the-relay\n", "operators.txt": f"{TOKEN}\n", "token": TOKEN}
    pair, ca = signed(), authority()
    pems = {
        "tls.crt": pair.certificate.read_text(),
        "tls.key": pair.key.read_text(),
        "ca.crt": ca.certificate.read_text(),
    }
    return {
        **dict.fromkeys(("otel-llm-tokens", "gateway-token"), tokens),
        "relay-tokens": operators,
        **dict.fromkeys(("otel-llm-tls", "relay-tls", "gateway-ca"), pems),
        "vllm-keys": {"vllm-0": "sk-0123456789abcdef", "vllm-1": "sk-123456789abcdef0"},
        "oncall": {"secret": SIGNING},
        "relay-commands": {"secret": SIGNING},
        "central": {"headers": "x-key: 12345\n"},
    }


def parts_of(chart: Manifest) -> list[str]:
    kinds = {one["kind"] for one in chart["manifests"]}
    return ["collector", *(["relay"] if "Deployment" in kinds else [])]


def test_five_files_of_values_are_valid(charts: dict[str, Manifest]) -> None:
    assert len(charts) == 5
    for name, chart in charts.items():
        assert "refused" not in chart, (name, chart.get("refused"))
        assert chart["lint"] == [], name
        without = [finding for finding in chart["findings"] if not finding.startswith("no schema: ")]
        assert without == [], name
        assert {finding.split(": ")[1] for finding in chart["findings"]} <= CUSTOM.keys()


def test_a_value_that_is_wrong_or_missing_is_refused(tmp_path: Path) -> None:
    least = yaml.safe_load((CHART / "ci" / "single-values.yaml").read_text(encoding="utf-8"))
    relay = {"enabled": True, "auth": {"secret": "a"}, "settings": {"backends": {"a": {"url": "http://a:8000"}}}}
    no_peers: tuple[list[Any] | None, ...] = ([], None)
    wrong: dict[str, Any] = {
        "no image": least | {"image": {}},
        "no instances": least | {"instances": []},
        "no tokens": least | {"auth": {"secret": ""}},
        "unknown key": least | {"replicas": 3},
        "a secret as a value": least | {"auth": {"secret": "otel-llm-tokens", "token": TOKEN}},
        "tls beside the chart's": least | {"collector": {"settings": {"tls": {"certificate": "a", "key": "b"}}}},
        "a relay without backends": least | {"relay": relay | {"settings": {}}},
        "a relay without tokens": least | {"relay": relay | {"auth": {"secret": ""}}},
        "rules that are asked for and not given": least | {"prometheusRule": {"enabled": True}},
        "an image with a comment": least | {"image": {"repository": "registry.example/otel-llm # mine"}},
        "a gateway's token without the gateway": least | {"relay": relay | {"otlp": {"tokenSecret": "gateway-token"}}},
        # Kubernetes reads a rule of no peers as a rule of all peers.
        **{
            f"no peers of {name}: {peers}": least | {"networkPolicy": {name: peers}}
            for name in ("applications", "monitoring", "clients")
            for peers in no_peers
        },
    }
    files = [tmp_path / f"{number}.yaml" for number in range(len(wrong) + 1)]
    for path, values in zip(files, [*wrong.values(), least | {"relay": relay}], strict=True):
        path.write_text(yaml.safe_dump(values), encoding="utf-8")
    found = rendered(files)
    refused = [name for path, name in zip(files, wrong, strict=False) if "refused" in found[path]]
    assert refused == list(wrong)
    assert "refused" not in found[files[-1]], "the values that the wrong ones are made of are right"


def test_services_accept_their_settings(charts: dict[str, Manifest], tmp_path: Path) -> None:
    """The files of each pod, laid as a kubelet lays them, are read by the collector's and the relay's own code."""
    for name, chart in charts.items():
        for part in parts_of(chart):
            folder = tmp_path / name / part
            place_files(chart["manifests"], part, folder, secrets())
            file = folder / "config" / "settings.yaml"
            text = file.read_text(encoding="utf-8").replace("/etc/otel-llm/", f"{folder}/")
            file.resolve().write_text(text, encoding="utf-8")
            settings = load_settings(file) if part == "collector" else load_relay_settings(file, ())
            assert settings.metrics.instance_label, name
            assert settings.metrics.instances, name
            assert settings.auth is not None, name
            assert (settings.operators is not None) is (part == "relay"), name
            assert settings.web.hosts, name
            arguments = pod_of(chart["manifests"], part)["containers"][0]["args"]
            if "--slo=/etc/otel-llm/config/slo.yaml" in arguments:
                load_slo(folder / "config" / "slo.yaml")
            if "--rules=/etc/otel-llm/config/rules" in arguments:
                does = RELAY_DOES if part == "relay" else ()
                assert load_rules([str(folder / "config" / "rules")], does).rules


def test_the_values_reach_the_settings(charts: dict[str, Manifest]) -> None:
    def settings(name: str, part: str = "collector") -> dict[str, Any]:
        data = of_kind(charts[name]["manifests"], "ConfigMap", part)["data"]["settings.yaml"]
        found = json.loads(data)
        assert isinstance(found, dict)
        return found

    fleet = settings("fleet")
    assert fleet["journal"] == {"retain_bytes": 190_000_000_000, "fsync": "always"}
    assert fleet["tls"]["web"] == "server"
    service, zone = "otel-llm-collector", "observability.svc"
    assert {service, f"{service}.{zone}.cluster.local", f"{service}-2.{service}.{zone}"} <= {*fleet["web"]["hosts"]}
    assert f"{service}-3.{service}.{zone}" not in fleet["web"]["hosts"]
    closed = settings("closed")["web"]["hosts"]
    assert {"otel-llm.example", f"{service}.{zone}"} <= {*closed}
    assert f"otel-llm-relay.{zone}" in settings("relay", "relay")["web"]["hosts"]
    assert settings("closed")["auth"] == {"tokens_file": "/etc/otel-llm/auth/tokens.txt", "web": "open"}
    assert settings("relay")["metrics"] == {"instance_label": True, "instances": ["standby", "vllm-0", "vllm-1"]}
    assert settings("relay", "relay")["metrics"]["instances"] == ["vllm-0", "vllm-1"]
    graces = {name: pod_of(charts[name]["manifests"], "collector")["terminationGracePeriodSeconds"] for name in NAMES}
    assert graces == {"closed": 15, "fleet": 25, "region": 15, "relay": 15, "single": 15}
    assert pod_of(charts["relay"]["manifests"], "relay")["terminationGracePeriodSeconds"] == 65


def test_texts_of_files_and_names_of_secrets_are_free(tmp_path: Path) -> None:
    """A file may begin with an indented line; a secret's name is longer than a volume's may be, and has dots."""
    values = yaml.safe_load((CHART / "ci" / "single-values.yaml").read_text(encoding="utf-8"))
    text, names = "  # indented\nversion: 1\n\n\tx", ["a.b", "n" * 253]
    collector = {"rules": {"mine": text}, "secrets": names}
    (tmp_path / "values.yaml").write_text(yaml.safe_dump({**values, "slo": text, "collector": collector}))
    (chart,) = rendered([tmp_path / "values.yaml"]).values()
    data = of_kind(chart["manifests"], "ConfigMap")["data"]
    assert {data[key].rstrip("\n") for key in ("slo.yaml", "rules.mine.yaml")} == {text}
    pod = pod_of(chart["manifests"], "collector")
    volumes = {one["secret"]["secretName"]: one["name"] for one in pod["volumes"] if "secret" in one}
    mounts = {one["name"]: one["mountPath"] for one in pod["containers"][0]["volumeMounts"]}
    for name in names:
        assert re.fullmatch("[a-z0-9]([-a-z0-9]{0,61}[a-z0-9])?", volumes[name]), "a DNS label"
        assert mounts[volumes[name]] == f"/etc/otel-llm/secrets/{name}"


def test_every_pod_is_hardened(charts: dict[str, Manifest]) -> None:
    for name, chart in charts.items():
        for part in parts_of(chart):
            pod = pod_of(chart["manifests"], part)
            (container,) = pod["containers"]
            assert not pod["automountServiceAccountToken"]
            assert pod["securityContext"]["runAsNonRoot"], name
            assert pod["securityContext"]["seccompProfile"] == {"type": "RuntimeDefault"}
            assert container["securityContext"] == {
                "allowPrivilegeEscalation": False,
                "capabilities": {"drop": ["ALL"]},
                "readOnlyRootFilesystem": True,
            }
            assert container["resources"]["requests"].keys() == {"cpu", "memory"}
            assert container["resources"]["limits"].keys() == {"memory"}, "a CPU limit delays decisions"
            assert {"startupProbe", "livenessProbe", "readinessProbe"} <= container.keys()
            scheme = "HTTPS" if any(volume["name"] == "tls" for volume in pod["volumes"]) else "HTTP"
            assert {container[probe]["httpGet"]["scheme"] for probe in container if probe.endswith("Probe")} == {scheme}
            writable = [mount["name"] for mount in container["volumeMounts"] if not mount.get("readOnly")]
            assert writable == (["data"] if part == "collector" else [])


def test_no_manifest_holds_a_secret(charts: dict[str, Manifest]) -> None:
    for chart in charts.values():
        assert not any(one["kind"] == "Secret" for one in chart["manifests"])
        for part in parts_of(chart):
            (container,) = pod_of(chart["manifests"], part)["containers"]
            tokens = [one for one in container.get("env", []) if "TOKEN" in one["name"]]
            assert all(one.keys() == {"name", "valueFrom"} for one in tokens)


def test_the_network_is_closed_but_for_the_listed_peers(charts: dict[str, Manifest]) -> None:
    closed = of_kind(charts["closed"]["manifests"], "NetworkPolicy")["spec"]
    assert closed["policyTypes"] == ["Ingress", "Egress"]
    telemetry, pages = closed["ingress"]
    assert telemetry["ports"] == [{"port": "otlp-grpc"}, {"port": "otlp-http"}]
    assert telemetry["from"] == [{"namespaceSelector": {"matchLabels": {"kubernetes.io/metadata.name": "chat"}}}]
    assert pages["ports"] == [{"port": "web"}]
    assert [rule["ports"][0]["port"] for rule in closed["egress"]] == [53, 443]
    relay = of_kind(charts["relay"]["manifests"], "NetworkPolicy", "relay")["spec"]
    assert relay["policyTypes"] == ["Ingress"]
    assert all(rule["from"] for rule in relay["ingress"]), "a rule without peers lets everybody in"


def test_the_gateway_lists_the_pods_of_the_fleet(charts: dict[str, Manifest]) -> None:
    """`gateway.yaml` and the chart agree on the names of three collectors, and the notes tell them."""
    fleet = charts["fleet"]
    stateful = of_kind(fleet["manifests"], "StatefulSet")
    service = of_kind(fleet["manifests"], "Service")
    assert service["spec"]["clusterIP"] == "None"
    assert service["spec"]["publishNotReadyAddresses"]
    assert service["metadata"]["name"] == stateful["spec"]["serviceName"]
    pod, domain = stateful["metadata"]["name"], f"{service['metadata']['name']}.observability.svc"
    names = [f"{pod}-{number}.{domain}:4317" for number in range(stateful["spec"]["replicas"])]
    gateway = yaml.safe_load(GATEWAY.read_text(encoding="utf-8"))
    assert gateway["exporters"]["load_balancing"]["resolver"]["static"]["hostnames"] == names
    assert re.findall(r"^  ([\w.-]+:4317)$", fleet["notes"], re.MULTILINE) == names


def test_relays_and_applications_list_the_collectors_unless_a_gateway_is_named(
    charts: dict[str, Manifest], tmp_path: Path
) -> None:
    """The list is one that our exporter takes: the relay's own code reads it, with the headers and the certificate."""

    def variables(chart: Manifest) -> dict[str, str]:
        (container,) = pod_of(chart["manifests"], "relay")["containers"]
        return {one["name"]: one.get("value", "") for one in container["env"]}

    one = variables(charts["relay"])
    assert list(listed_settings(one)) == ["https://otel-llm-collector-0.otel-llm-collector.observability.svc:4317"]
    values = yaml.safe_load((CHART / "ci" / "region-values.yaml").read_text(encoding="utf-8"))
    del values["relay"]["otlp"]
    (tmp_path / "values.yaml").write_text(yaml.safe_dump(values), encoding="utf-8")
    (chart,) = rendered([tmp_path / "values.yaml"]).values()
    names = [f"http://otel-llm-collector-{n}.otel-llm-collector.observability.svc:4317" for n in range(2)]
    assert list(listed_settings(variables(chart))) == names
    assert f"  OTEL_LLM_ENDPOINTS={','.join(names)}\n" in chart["notes"]
    assert "OTEL_EXPORTER_OTLP_ENDPOINT" not in variables(chart)
    gateway = variables(charts["region"])
    assert gateway["OTEL_EXPORTER_OTLP_ENDPOINT"] == "https://otel-gateway.observability.svc:4317"
    assert "OTEL_LLM_ENDPOINTS" not in gateway, "it would win"


def test_prometheus_keeps_the_instance_and_finds_the_jobs_of_the_rules(charts: dict[str, Manifest]) -> None:
    jobs = {}
    for name, part in (("fleet", "collector"), ("relay", "collector"), ("relay", "relay")):
        monitor = of_kind(charts[name]["manifests"], "ServiceMonitor", part)
        (endpoint,) = monitor["spec"]["endpoints"]
        assert endpoint.keys() <= ENDPOINT_KEYS
        assert endpoint["honorLabels"]
        assert endpoint["authorization"]["credentials"]["key"] == "token"
        job, whose = endpoint["relabelings"]
        assert whose == {"sourceLabels": ["__meta_kubernetes_pod_name"], "targetLabel": part}
        jobs[part] = job["replacement"]
        labels = of_kind(charts[name]["manifests"], "Service", part)["metadata"]["labels"]
        assert monitor["spec"]["selector"]["matchLabels"].items() <= labels.items()
    assert jobs == {"collector": "otel-llm", "relay": "otel-llm-relay"}
    shipped = ROOT / "collector" / "prometheus" / "prometheus.yml"
    if shipped.exists():
        scraped = yaml.safe_load(shipped.read_text(encoding="utf-8"))["scrape_configs"]
        assert {one["job_name"] for one in scraped} == set(jobs.values())
        assert all(one["honor_labels"] for one in scraped)


def test_promtool_accepts_the_rules_of_a_prometheus_rule(charts: dict[str, Manifest], tmp_path: Path) -> None:
    spec = of_kind(charts["fleet"]["manifests"], "PrometheusRule")["spec"]
    assert spec.keys() == {"groups"}
    (tmp_path / "rules.yml").write_text(yaml.safe_dump(spec), encoding="utf-8")
    command = [program("promtool"), "check", "rules", "--lint-fatal", "rules.yml"]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr


def test_a_change_of_the_settings_restarts_the_pods(tmp_path: Path) -> None:
    values = CHART / "ci" / "single-values.yaml"
    other = tmp_path / "other.yaml"
    shutil.copy(values, other)
    other.write_text(other.read_text() + "collector: {settings: {limits: {streams_in_flight: 5000}}}\n")
    sums = {
        of_kind(chart["manifests"], "StatefulSet")["spec"]["template"]["metadata"]["annotations"]["checksum/config"]
        for chart in rendered([values, other]).values()
    }
    assert len(sums) == 2
