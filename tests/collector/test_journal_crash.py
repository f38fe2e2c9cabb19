"""The real thing: kill -9 while records are acknowledged, and a filesystem that is really full."""

from __future__ import annotations

import json
import os
import random
import signal
import subprocess
import sys
import textwrap
from collections import Counter
from pathlib import Path

import pytest
from support.commands import wait_until
from support.namespaces import in_a_namespace_of_its_own
from support.recordings import received

from otel_llm.formats.io.skipped import Skipped
from otel_llm.journal.journal import Journal
from otel_llm.journal.records import records_since

APPENDING = """
    import os, sys, threading
    from pathlib import Path
    from otel_llm.journal.journal import Journal

    first, folder = int(sys.argv[1]), Path(sys.argv[2])
    journal = Journal(folder, fsync="always", max_bytes=20_000, retry_s=0.01).open()
    order, numbers = threading.Lock(), iter(range(first, 10**9))

    def work():
        while True:
            with order:
                i = next(numbers)
                position = journal.append(b"\\x0a\\x00" * (i % 300), i)
            journal.wait_durable(position)
            os.write(1, b"%d\\n" % i)  # acknowledged

    for _ in range(4):
        threading.Thread(target=work).start()
"""


@pytest.mark.essential
def test_every_acknowledged_record_is_read_back_after_kill_9(tmp_path: Path) -> None:
    """Over several lives of one folder, each killed at some moment of writing, closing or compressing."""
    rng = random.Random(4)
    acknowledged: set[int] = set()
    first = 1
    for _ in range(8):
        command = [sys.executable, "-c", textwrap.dedent(APPENDING), str(first), str(tmp_path)]
        with subprocess.Popen(command, stdout=subprocess.PIPE) as process:
            assert process.stdout is not None
            for _ in range(rng.randrange(1, 600)):
                acknowledged.add(int(process.stdout.readline()))
            process.send_signal(signal.SIGKILL)
            acknowledged.update(int(line) for line in process.stdout.read().split(b"\n")[:-1])
        skipped: Counter[str] = Counter()
        found = {record.receipt_ns: record.raw for record in records_since(tmp_path, 0, skipped)}
        assert acknowledged <= set(found)
        assert all(raw == b"\x0a\x00" * ((at or 0) % 300) for at, raw in found.items())
        assert list(found) == sorted(found, key=lambda at: at or 0)  # none twice (a dict), and in order
        assert set(skipped) <= {"torn_tail"}
        first = max(at or 0 for at in found) + 1
    with Journal(tmp_path) as journal:
        wait_until("all are compressed", lambda: not list(tmp_path.glob("*.otlp")))
        assert journal.counts()["journal_compress_errors"] == 0
    assert {one.receipt_ns for one in received([tmp_path], Skipped())} == set(found)


FULL_DISK = """
    import json, os, shutil, signal, sys, time
    from collections import Counter
    from pathlib import Path
    from otel_llm.journal.journal_errors import JournalError
    from otel_llm.journal.journal import Journal
    from otel_llm.journal.records import records_since

    base, compress, keep_trying = Path(sys.argv[1]), sys.argv[2] == "True", sys.argv[3] == "True"
    raw = os.urandom(3000)
    (base / "other").write_bytes(bytes(40_000))
    journal = Journal(base / "journal", max_bytes=60_000, compress=compress, retry_s=0.01).open()
    acknowledged, refused, i, say = [], 0, 0, {}

    def append():
        global i, refused
        i += 1
        try:
            journal.wait_durable(journal.append(raw, i))
        except JournalError as error:
            refused += 1
            say["reason"], say["failing"] = error.reason, journal.failing or say.get("failing")
            say["failing_count"] = max(say.get("failing_count", 0), journal.counts()["journal_failing"])
        else:
            acknowledged.append(i)

    while refused < 20:
        append()
    say["write_errors"] = journal.counts()["journal_write_errors"] >= 20
    skipped = Counter()
    say["intact"] = [record.receipt_ns for record in records_since(base / "journal", 0, skipped)] == acknowledged
    say["skipped"] = dict(skipped)
    before = len(acknowledged)
    (base / "other").unlink()  # room
    give_up = time.monotonic() + 60
    while journal.failing is not None and time.monotonic() < give_up:
        append() if keep_trying else time.sleep(0.005)
    say["recovered"] = journal.failing is None
    append()
    append()
    say["appended"] = acknowledged[-2:] == [i - 1, i] and len(acknowledged) > before
    journal.close()
    say["read"] = [r.receipt_ns for r in records_since(base / "journal", 0, skipped)] == acknowledged
    say["skipped_at_last"] = dict(skipped)
    say["files"] = sorted(path.name for path in (base / "journal").iterdir() if ".otlp" not in path.name)
    print(json.dumps(say))
"""


@pytest.mark.parametrize("keep_trying", [True, False])
@pytest.mark.parametrize("compress", [True, False])
def test_a_full_disk_refuses_keeps_what_it_has_and_goes_on_when_there_is_room(
    tmp_path: Path, *, compress: bool, keep_trying: bool
) -> None:
    namespace = in_a_namespace_of_its_own()
    script = tmp_path / "full.py"
    script.write_text(textwrap.dedent(FULL_DISK))
    small = tmp_path / "small"
    small.mkdir()
    command = 'mount -t tmpfs -o size=256k none "$1" && exec "$2" "$3" "$1" "$4" "$5"'
    arguments = [str(small), sys.executable, str(script), str(compress), str(keep_trying)]
    done = subprocess.run(
        [*namespace, "sh", "-c", command, "sh", *arguments],
        capture_output=True, text=True, check=False, env={**os.environ, "PYTHONPATH": str(Path(__file__).parents[2])},
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout) == {
        "reason": "No space left on device",
        "failing": "No space left on device",
        "failing_count": 1,
        "write_errors": True,
        "intact": True,
        "skipped": {},
        "recovered": True,
        "appended": True,
        "read": True,
        "skipped_at_last": {},
        "files": ["journal.lock"],
    }
    assert "can be written again" in done.stderr
