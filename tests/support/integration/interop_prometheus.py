"""Debian's Prometheus as a process: it scrapes the given targets and answers PromQL."""

from __future__ import annotations

import json
import math
import subprocess
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from support.commands import wait_until
from support.patience import WAIT_S
from support.ports import free_ports
from support.requirements import found_program

# A scrape may take as long as its interval and no longer: on a busy machine a page takes a quarter of a second.
CONFIG = """
global: {scrape_interval: 1s, scrape_timeout: 1s}
scrape_configs:
- job_name: otel-llm
  static_configs: [{targets: ['TARGET']}]
"""


def program(name: str) -> str:
    """Return where `prometheus` or `promtool` is; skip the test if they are not installed."""
    return found_program("prometheus", name)


class Prometheus:
    """Ask a running Prometheus."""

    def __init__(self, address: str) -> None:
        self.address = address

    def query(self, promql: str, at_s: float | None = None) -> dict[tuple[str, ...], float]:
        """Return a vector, now or at an instant (unix s): values by those of the labels, in order of their names."""
        asked = urllib.parse.urlencode({"query": promql} | ({} if at_s is None else {"time": f"{at_s:.3f}"}))
        return {
            tuple(value for name, value in sorted(one["metric"].items()) if name != "__name__"): float(one["value"][1])
            for one in self._get(f"/api/v1/query?{asked}")["result"]
        }

    def scraped(self, promql: str, wanted: Mapping[tuple[str, ...], float]) -> float:
        """Wait for a scrape of the one target that answers a query so; return its instant (unix s).

        What is asked of that instant is of this scrape. Of now there is nothing after a scrape that failed, as one does
        if a busy machine takes longer than a second for it.
        """
        at_s = math.nan

        def answered() -> bool:
            nonlocal at_s
            at_s = max(self.query("timestamp(up)").values(), default=math.nan)
            return not math.isnan(at_s) and self.query(promql, at_s) == wanted

        wait_until(f"{promql} is {wanted}", answered)
        return at_s

    def names(self) -> list[str]:
        """Return the names of all metrics."""
        return list(self._get("/api/v1/label/__name__/values"))

    def target(self) -> dict[str, Any]:
        """Return the state of the one target."""
        (found,) = self._get("/api/v1/targets")["activeTargets"]
        return dict(found)

    def rules(self) -> list[dict[str, Any]]:
        """Return the rules of all groups, with how their last evaluation went."""
        return [rule for group in self._get("/api/v1/rules")["groups"] for rule in group["rules"]]

    def ready(self) -> bool:
        try:
            with urllib.request.urlopen(f"http://{self.address}/-/ready", timeout=5):
                return True
        except (urllib.error.URLError, OSError):
            return False

    def _get(self, path: str) -> Any:
        try:
            with urllib.request.urlopen(f"http://{self.address}{path}", timeout=WAIT_S) as answer:
                return json.loads(answer.read())["data"]
        except urllib.error.HTTPError as refused:
            with refused:
                raise AssertionError(f"{path}: {refused.read().decode()}") from refused


@contextmanager
def prometheus(folder: Path, target: str, more: str = "") -> Iterator[Prometheus]:
    """Run Prometheus in a folder, scraping `target` every second; `more`: what its configuration also says."""
    with started(folder, CONFIG.replace("TARGET", target) + more) as running:
        yield running


@contextmanager
def started(folder: Path, config: str) -> Iterator[Prometheus]:
    """Run Prometheus in a folder with a configuration."""
    (folder / "prometheus.yml").write_text(config, encoding="utf-8")
    address = f"127.0.0.1:{free_ports(1)[0]}"  # it cannot pick a port itself
    command = [
        *(program("prometheus"), f"--config.file={folder / 'prometheus.yml'}"),
        *(f"--storage.tsdb.path={folder / 'tsdb'}", f"--web.listen-address={address}"),
    ]
    with (folder / "prometheus.log").open("wb") as log:
        process = subprocess.Popen(command, stdout=log, stderr=log)
    running = Prometheus(address)
    try:
        wait_until("Prometheus is ready", lambda: running.ready() or process.poll() is not None)
        assert process.poll() is None, (folder / "prometheus.log").read_text()
        yield running
    finally:
        process.terminate()
        try:
            process.wait(20)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
