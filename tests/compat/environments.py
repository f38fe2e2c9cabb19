"""Environments of package sets: made once for their requirements, under `.venv-compat` in the repository."""

from __future__ import annotations

import hashlib
import shutil
import subprocess
import sys
import venv
from dataclasses import dataclass
from pathlib import Path

import uv

ROOT = Path(__file__).parent.parent.parent
FOLDER = ROOT / ".venv-compat"


@dataclass(frozen=True)
class Environment:
    """A set of packages that fit together."""

    name: str
    requirements: tuple[str, ...]

    @property
    def folder(self) -> Path:
        """Return where the environment is."""
        return FOLDER / self.name

    @property
    def python(self) -> Path:
        """Return its interpreter."""
        return self.folder / "bin" / "python"

    @property
    def key(self) -> str:
        """Return a hash of what is installed in it: its requirements, and this project's."""
        project = (ROOT / "pyproject.toml").read_text(encoding="utf-8")
        return hashlib.sha256("\n".join([*self.requirements, sys.version, project]).encode()).hexdigest()

    @property
    def ready(self) -> bool:
        """Return whether it is there, and made for these requirements."""
        made = self.folder / "ready"
        return made.exists() and made.read_text(encoding="utf-8") == self.key

    def make(self) -> None:
        """Install it, unless it is ready. Raises `CalledProcessError` if that fails."""
        if self.ready:
            return
        self.delete()
        venv.create(self.folder, with_pip=False, symlinks=True)
        packages = [*self.requirements, "-e", str(ROOT)]
        # Without bytecode: the cases import a third of the modules, and compile those when they do.
        command = [uv.find_uv_bin(), "pip", "install", "-q", "--python", str(self.python)]
        subprocess.run([*command, *packages], check=True)
        (self.folder / "ready").write_text(self.key, encoding="utf-8")

    def version(self, package: str) -> str:
        """Return the version of a package in it. Raises `CalledProcessError` if it is not installed."""
        asked = f"import importlib.metadata as m; print(m.version({package!r}))"
        return subprocess.run([self.python, "-c", asked], check=True, capture_output=True, text=True).stdout.strip()

    def delete(self) -> None:
        """Remove it."""
        shutil.rmtree(self.folder, ignore_errors=True)
