"""A headless Chromium driven over its debugging pipe: what a page logged, asked of the network, and looks like."""

from __future__ import annotations

import base64
import contextlib
import json
import os
import subprocess
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from support.patience import WAIT_S
from support.requirements import BROWSERS, found_program

FLAGS = (
    "--headless",
    "--no-sandbox",
    "--disable-gpu",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
    "--disable-quic",
    "--hide-scrollbars",
)


class Page:
    """One open page and everything it did since it was opened."""

    def __init__(self, commands: Any, answers: Any, session: str | None = None) -> None:
        self._commands, self._answers = commands, answers
        self._buffer = b""
        self._last_id = 0
        self._session = session
        self.events: list[dict[str, Any]] = []

    def call(self, method: str, **params: Any) -> dict[str, Any]:
        """Send one command and return its result; events that come meanwhile are kept."""
        self._last_id += 1
        message: dict[str, Any] = {"id": self._last_id, "method": method, "params": params}
        if self._session:
            message["sessionId"] = self._session
        self._commands.write(json.dumps(message).encode() + b"\0")
        self._commands.flush()
        while True:
            answer = self._read()
            if answer.get("id") == self._last_id:
                assert "error" not in answer, answer
                result: dict[str, Any] = answer["result"]
                return result
            self.events.append(answer)

    def attach(self) -> None:
        """Open an empty page and listen to it."""
        target = self.call("Target.createTarget", url="about:blank")["targetId"]
        self._session = self.call("Target.attachToTarget", targetId=target, flatten=True)["sessionId"]
        for domain in ("Page", "Runtime", "Network", "Log"):
            self.call(f"{domain}.enable")

    def detach(self) -> None:
        """Speak to the browser itself from here on."""
        self._session = None

    def open(self, path: Path) -> None:
        """Load a file and wait until it has loaded."""
        self.events.clear()
        self.call("Page.navigate", url=path.resolve().as_uri())
        self.wait(lambda: bool(self.evaluate("document.readyState === 'complete'")))

    def evaluate(self, expression: str) -> Any:
        """Return the value of an expression in the page."""
        answer = self.call("Runtime.evaluate", expression=expression, returnByValue=True, awaitPromise=True)
        assert "exceptionDetails" not in answer, answer
        return answer["result"].get("value")

    def wait(self, ready: Callable[[], bool]) -> None:
        """Ask until `ready`, for a minute at most."""
        deadline = time.monotonic() + WAIT_S
        while not ready():
            assert time.monotonic() < deadline, "the page did not get ready"
            time.sleep(0.02)

    def screenshot(self, path: Path | None = None) -> bytes:
        """Return the visible part as PNG, and write it if asked."""
        image = base64.b64decode(self.call("Page.captureScreenshot", format="png")["data"])
        if path is not None:
            path.write_bytes(image)
        return image

    def complaints(self) -> list[dict[str, Any]]:
        """Return what should not have happened: errors, warnings, exceptions, dialogs."""
        return [event for event in self.events if _is_bad(event)]

    def requests(self) -> list[str]:
        """Return every address that the page asked for, its own apart."""
        requested = [
            str(event["params"]["request"]["url"])
            for event in self.events
            if event.get("method") == "Network.requestWillBeSent"
        ]
        return [url for url in requested if not url.startswith(("file:", "data:", "blob:", "about:"))]

    def _read(self) -> dict[str, Any]:
        while b"\0" not in self._buffer:
            more = os.read(self._answers.fileno(), 1 << 20)
            assert more, "the browser is gone"
            self._buffer += more
        raw, self._buffer = self._buffer.split(b"\0", 1)
        message: dict[str, Any] = json.loads(raw)
        return message


def _is_bad(event: dict[str, Any]) -> bool:
    params = event.get("params", {})
    match event.get("method"):
        case "Runtime.exceptionThrown" | "Page.javascriptDialogOpening":
            return True
        case "Runtime.consoleAPICalled":
            return params["type"] in {"error", "warning", "assert"}
        case "Log.entryAdded":
            return params["entry"]["level"] in {"error", "warning"}
        case _:
            return False


@contextlib.contextmanager
def browser(width: int = 1200, height: int = 900) -> Iterator[Page]:
    """Start a browser with an empty profile and give its page; it is gone afterwards."""
    program = found_program("chromium", *BROWSERS)
    assert program is not None
    command_read, command_write = os.pipe()
    answer_read, answer_write = os.pipe()
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as profile:
        # The pipe's ends are file 3 (commands) and 4 (answers) of the browser.
        shell = f'exec "$@" 3<&{command_read} 4>&{answer_write}'
        where = ("--remote-debugging-pipe", f"--user-data-dir={profile}", f"--window-size={width},{height}")
        process = subprocess.Popen(
            ["bash", "-c", shell, "bash", program, *FLAGS, *where],
            pass_fds=(command_read, answer_write),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        os.close(command_read)
        os.close(answer_write)
        with os.fdopen(command_write, "wb") as commands, os.fdopen(answer_read, "rb", buffering=0) as answers:
            page = Page(commands, answers)
            try:
                page.attach()
                yield page
                page.detach()
                page.call("Browser.close")
            finally:
                process.kill()
                process.wait(WAIT_S)
