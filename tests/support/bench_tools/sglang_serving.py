"""SGLang's benchmark as its command runs it, without the first lines of its packages, which import torch.

Run by the Python of an environment that holds SGLang's wheel and what the benchmark imports. One constant stands in, a
host name out of a module that imports torch.
"""

from __future__ import annotations

import runpy
import sys
from importlib.machinery import ModuleSpec, PathFinder
from types import ModuleType


def package(name: str, folder: str) -> None:
    """Put a package in place whose `__init__.py` is not run."""
    module = ModuleType(name)
    module.__path__ = [folder]
    module.__spec__ = ModuleSpec(name, None, is_package=True)
    sys.modules[name] = module


def main() -> None:
    """Run the benchmark with the arguments of this program."""
    found = PathFinder.find_spec("sglang")
    if found is None or not found.submodule_search_locations:
        sys.exit("no SGLang in this environment")
    root = found.submodule_search_locations[0]
    for name in ("", ".srt", ".srt.utils", ".srt.disaggregation"):
        package(f"sglang{name}", root + name.replace(".", "/"))
    hosts = ModuleType("sglang.srt.disaggregation.utils")
    vars(hosts)["FAKE_BOOTSTRAP_HOST"] = "2.2.2.2"
    sys.modules[hosts.__name__] = hosts
    runpy.run_module("sglang.benchmark.serving", run_name="__main__", alter_sys=True)


if __name__ == "__main__":
    main()
