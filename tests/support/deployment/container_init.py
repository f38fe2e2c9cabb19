"""Become the first process of a container: `unshare -m python container_init.py SPEC`, SPEC as JSON.

It makes a root of its own from bind mounts, cannot write to it unless the spec says so, gives up root, and runs the
command. If no engine can be had, this is what one would do with an image and a pod's or a service's settings.
"""

from __future__ import annotations

import ctypes
import json
import os
import subprocess
import sys
from pathlib import Path

PR_SET_NO_NEW_PRIVS = 38
SYSTEM = ("/usr", "/bin", "/sbin", "/lib", "/lib64", "/dev", "/proc")


def mount(*arguments: str | Path) -> None:
    """Run `mount`."""
    subprocess.run(["mount", *map(str, arguments)], check=True)


def bind(source: Path, target: Path, *, writable: bool) -> None:
    """Mount a file or a folder at a place in the new root."""
    if source.is_dir():
        target.mkdir(parents=True, exist_ok=True)
    else:
        target.parent.mkdir(parents=True, exist_ok=True)
        target.touch()
    mount("--rbind", source, target)
    if not writable:
        mount("-o", "remount,bind,ro", target)


def make_root(root: Path, binds: list[tuple[str, str, bool]], files: dict[str, str]) -> None:
    """Fill the new root: the system, files, mounts; afterwards only the writable mounts can be changed."""
    mount("-t", "tmpfs", "-o", "mode=0755", "tmpfs", root)
    for name in SYSTEM:
        path = Path(name)
        if path.is_symlink():
            (root / path.relative_to("/")).symlink_to(path.readlink())
        elif path.exists():
            bind(path, root / path.relative_to("/"), writable=name in {"/dev", "/proc"})
    for name, text in files.items():
        path = root / name.lstrip("/")
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8")
    for source, target, writable in binds:
        bind(Path(source), root / target.lstrip("/"), writable=writable)
    mount("-o", "remount,ro", root)


def main() -> None:
    """Make the container and run its command in it."""
    spec = json.loads(sys.argv[1])
    root = Path(spec["root"])
    make_root(root, spec["binds"], spec["files"])
    os.chroot(root)
    os.chdir(spec["cwd"])
    if spec["uid"]:
        os.setgroups([])
        os.setgid(spec["uid"])
        os.setuid(spec["uid"])
        if ctypes.CDLL(None, use_errno=True).prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0):
            raise OSError(ctypes.get_errno(), "no_new_privs")
    os.execvpe(spec["command"][0], spec["command"], spec["env"])


if __name__ == "__main__":
    main()
