"""Commands with mounts of their own: a full disk, a file system that cannot be written to."""

from __future__ import annotations

import subprocess

import pytest


def in_a_namespace_of_its_own() -> list[str]:
    """Return the start of a command with private mounts; skip the test where the kernel does not allow them."""
    for command in (["unshare", "-m"], ["unshare", "-Urm"]):
        tried = [*command, "mount", "-t", "tmpfs", "none", "/mnt"]
        if not subprocess.run(tried, capture_output=True, check=False).returncode:
            return command
    pytest.skip("no mount namespace: neither root nor user namespaces are allowed here")
