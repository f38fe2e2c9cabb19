"""A real Spark in `.venv-spark`: programs that run there, on a cluster of two worker processes on this machine."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

from support.requirements import SPARK, require

JOB = Path(__file__).with_name("spark_job.py")
LIMIT_S = 900


def run_python(folder: Path, *arguments: str | Path) -> str:
    """Run Python in Spark's environment, and return what it wrote; a failure fails the test with its end.

    `folder` takes what Spark writes beside: its work folder lies in its home, which is therefore made of links here.
    """
    require("spark")
    require("java")
    (installed,) = SPARK.glob("lib/python*/site-packages/pyspark")
    home = folder / "spark-home"
    if not home.exists():
        home.mkdir(parents=True)
        for entry in installed.iterdir():
            if entry.name != "work":
                (home / entry.name).symlink_to(entry)
    python = str(SPARK / "bin" / "python")
    environment = {
        **os.environ,
        "SPARK_HOME": str(home),
        "SPARK_LOCAL_IP": "127.0.0.1",
        "SPARK_LOCAL_DIRS": str(folder / "spark-local"),
        "PYSPARK_PYTHON": python,
        "PYSPARK_DRIVER_PYTHON": python,
        "JAVA_TOOL_OPTIONS": "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC",  # short programs: start quickly
    }
    log = folder / "spark.log"
    with log.open("wb") as file:
        command = [python, *map(str, arguments)]
        done = subprocess.run(
            command, env=environment, cwd=folder, stdout=file, stderr=file, timeout=LIMIT_S, check=False
        )
    reported = log.read_text(errors="replace")
    assert done.returncode == 0, reported[-6000:]
    return reported
