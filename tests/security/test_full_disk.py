"""A collector whose disk fills while senders send: nothing acknowledged is lost, nothing else stops, and it goes on."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import textwrap
from pathlib import Path

from support.namespaces import in_a_namespace_of_its_own
from support.patience import WAIT_S

SCRIPT = """
    import http.client, json, os, sys, threading, urllib.error, urllib.request
    from collections import Counter
    from itertools import count
    from pathlib import Path
    from support.commands import WAIT_S, collector, wait_until
    from support.collector.http_client import PROTOBUF
    from support.otlp import IDENTITY, export, segment_span
    from support.recordings import received
    from otel_llm.formats.io.skipped import Skipped

    base = Path(sys.argv[1])
    (base / "other").write_bytes(bytes(2_500_000))
    journal = "journal: {file_bytes: 65536, retain_bytes: none}"
    (base / "settings.yaml").write_text(f"version: 1\\n{journal}\\nlimits: {{drain_seconds: 30}}\\n")
    numbers, answers, acknowledged = count(1), Counter(), set()
    lock, stop = threading.Lock(), threading.Event()

    def send(address):
        connection = http.client.HTTPConnection(address, timeout=WAIT_S)
        while not stop.is_set():
            with lock:
                number = next(numbers)
            filling = {f"a{at}": os.urandom(450).hex() for at in range(4)}
            raw = export(segment_span(0, 0, request=number, attributes=IDENTITY | filling)).SerializeToString()
            connection.request("POST", "/v1/traces", raw, PROTOBUF)
            answer = connection.getresponse()
            answer.read()
            with lock:
                answers[answer.status] += 1
                if answer.status == 200:
                    acknowledged.add(number)

    def status(url):
        try:
            with urllib.request.urlopen(url, timeout=WAIT_S) as answer:
                return answer.status
        except urllib.error.HTTPError as error:
            return error.code

    outputs = ("--decisions", base / "decisions", "--windows", base / "windows", "--window", "100ms")
    with collector(base, "--config", base / "settings.yaml", *outputs) as running:
        threads = [threading.Thread(target=send, args=[running.http]) for _ in range(3)]
        for thread in threads:
            thread.start()
        wait_until("the disk is full", lambda: answers[503] >= 20)
        said = {"metrics": status(f"{running.web}/metrics"), "streams": status(f"{running.web}/v1/streams")}
        said["ready"] = status(f"{running.web}/readyz")
        (base / "other").unlink()
        before = len(acknowledged)
        wait_until("it goes on", lambda: len(acknowledged) > before + 20)
        stop.set()
        for thread in threads:
            thread.join()
        said["ready again"] = status(f"{running.web}/readyz")
        said["end"] = running.stop()[0]
    skipped = Skipped()
    found = [int.from_bytes(message.resource_spans[0].scope_spans[0].spans[0].trace_id, "big")
             for message, *_ in received([base / "journal"], skipped)]
    said |= {"answers": sorted(answers), "lost": len(acknowledged - set(found)), "skipped": dict(skipped.counts)}
    print(json.dumps(said))
"""


def test_nothing_acknowledged_is_lost_and_it_goes_on_when_there_is_room(tmp_path: Path) -> None:
    namespace = in_a_namespace_of_its_own()
    script, small = tmp_path / "full.py", tmp_path / "small"
    script.write_text(textwrap.dedent(SCRIPT))
    small.mkdir()
    command = 'mount -t tmpfs -o size=4m none "$1" && exec "$2" "$3" "$1"'
    root = Path(__file__).parents[2]
    done = subprocess.run(
        [*namespace, "sh", "-c", command, "sh", str(small), sys.executable, str(script)],
        env={**os.environ, "PYTHONPATH": f"{root}:{root / 'tests'}"},
        capture_output=True,
        text=True,
        timeout=4 * WAIT_S,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout) == {
        "metrics": 200,
        "streams": 200,
        "ready": 503,
        "ready again": 200,
        "end": 0,
        "answers": [200, 503],
        "lost": 0,
        "skipped": {},
    }
