"""Without its extra the audit on Spark says what to install, and the rest of the package does not notice."""

from __future__ import annotations

import subprocess
import sys

WITHOUT = "import sys; sys.modules['pyspark'] = None; "


def run(code: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([sys.executable, "-c", WITHOUT + code], capture_output=True, text=True, check=False)


def test_the_command_names_the_extra() -> None:
    done = run("import runpy; runpy.run_module('otel_llm.audit.spark', run_name='__main__', alter_sys=True)")
    assert done.returncode == 2
    wanted = "Error: `python -m otel_llm.audit.spark` needs pyspark: pip install 'otel-llm[collector,spark]'\n"
    assert done.stderr == wanted


def test_so_does_the_import() -> None:
    done = run("from otel_llm.audit import spark; spark.judge")
    assert done.returncode == 1
    assert "`otel_llm.audit.spark` needs pyspark: pip install 'otel-llm[collector,spark]'" in done.stderr


def test_what_there_is_not_is_an_attribute_error() -> None:
    done = run("from otel_llm.audit import spark; print(hasattr(spark, 'jugde'))")
    assert done.stdout == "False\n"
