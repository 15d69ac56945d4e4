"""A headless Chromium that tests can look at pages with, over its own DevTools pipe.

No driver and no package is needed: commands and events are JSON, ended by NUL, on two pipes.
"""

from __future__ import annotations

import base64
import contextlib
import itertools
import json
import os
import select
import shutil
import subprocess
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

NAMES = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable", "chrome")
FLAGS = (
    *("--headless=new", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage"),
    *("--no-first-run", "--disable-background-networking", "--disable-component-update"),
    # Whatever a page asks of another host fails, and is seen.
    "--host-resolver-rules=MAP * ~NOTFOUND, EXCLUDE 127.0.0.1",
    "--remote-debugging-pipe",
)


def find() -> str | None:
    """The installed Chromium or Chrome, if any."""
    return next(filter(None, map(shutil.which, NAMES)), None)


class Navigated(Exception):
    """The page went away before it could answer."""


class Page:
    """One tab. What it asked for, and what it complained of, since `open`."""

    def __init__(self, commands: int, events: int) -> None:
        self._commands, self._events = commands, events
        self._ids, self._buffer, self._session = itertools.count(1), b"", None
        self.requests: list[str] = []
        self.problems: list[str] = []
        self._loaded = False
        target = self._call("Target.createTarget", url="about:blank")["targetId"]
        attached = self._call("Target.attachToTarget", targetId=target, flatten=True)
        self._session = attached["sessionId"]
        for domain in ("Page", "Runtime", "Network", "Log"):
            self._call(f"{domain}.enable")
        self.resize(1280, 900)

    def resize(self, width: int, height: int, mobile: bool = False) -> None:
        size = {"width": width, "height": height, "deviceScaleFactor": 1, "mobile": mobile}
        self._call("Emulation.setDeviceMetricsOverride", **size)

    def open(self, url: str) -> None:
        """Load a page, to the end of its load event and of its mathematics."""
        self._loaded, self.requests, self.problems = False, [], []
        answer = self._call("Page.navigate", url=url)
        assert "errorText" not in answer, f"{url}: {answer['errorText']}"
        if answer.get("loaderId"):  # absent where only the part after # has changed
            self._wait(lambda: self._loaded)
        self.evaluate("window.MathJax?.startup?.promise?.then(() => true)")

    def evaluate(self, expression: str) -> Any:
        """The value of a JavaScript expression, awaited."""
        answer = self._call(
            "Runtime.evaluate", expression=expression, awaitPromise=True, returnByValue=True
        )
        assert "exceptionDetails" not in answer, f"{expression}: {answer['exceptionDetails']}"
        return answer["result"].get("value")

    def until(self, expression: str, seconds: float = 120.0) -> Any:
        """The value of an expression once it is true."""
        end, value = time.monotonic() + seconds, None
        while not value:
            assert time.monotonic() < end, f"{expression} is still {value!r}"
            with contextlib.suppress(Navigated):  # asked while another page was being loaded
                value = self.evaluate(expression)
            time.sleep(0.0 if value else 0.1)
        return value

    def press(self, key: str) -> None:
        """A key, such as "ArrowRight", for what has the focus."""
        codes = {"ArrowLeft": 37, "ArrowUp": 38, "ArrowRight": 39, "ArrowDown": 40}
        about = {"key": key, "code": key, "windowsVirtualKeyCode": codes[key]}
        for kind in ("keyDown", "keyUp"):
            self._call("Input.dispatchKeyEvent", type=kind, **about)

    def screenshot(self, path: Path, whole: bool = False) -> None:
        shot = self._call("Page.captureScreenshot", captureBeyondViewport=whole)
        path.write_bytes(base64.b64decode(shot["data"]))

    def _call(self, method: str, **parameters: Any) -> dict[str, Any]:
        number = next(self._ids)
        message = {"id": number, "method": method, "params": parameters}
        if self._session:
            message["sessionId"] = self._session
        os.write(self._commands, json.dumps(message).encode() + b"\0")
        answer: list[dict[str, Any]] = []
        self._wait(lambda: bool(answer), number, answer)
        if "navigated" in answer[0].get("error", {}).get("message", ""):
            raise Navigated
        assert "error" not in answer[0], f"{method}: {answer[0]['error']}"
        return answer[0]["result"]

    def _wait(self, done: Any, number: int = 0, answer: list[dict[str, Any]] | None = None) -> None:
        end = time.monotonic() + 180
        while not done():
            ready, _, _ = select.select([self._events], [], [], max(0.0, end - time.monotonic()))
            assert ready, "the browser has not answered for three minutes"
            chunk = os.read(self._events, 1 << 20)
            assert chunk, "the browser has ended"
            *messages, self._buffer = (self._buffer + chunk).split(b"\0")
            for message in map(json.loads, messages):
                if answer is not None and message.get("id") == number:
                    answer.append(message)
                elif "method" in message:
                    self._note(message["method"], message["params"])

    def _note(self, event: str, about: dict[str, Any]) -> None:
        if event == "Page.loadEventFired":
            self._loaded = True
        elif event == "Network.requestWillBeSent":
            self.requests.append(about["request"]["url"])
        elif event == "Network.responseReceived" and about["response"]["status"] >= 400:
            self.problems.append(f"{about['response']['status']} {about['response']['url']}")
        elif event == "Network.loadingFailed" and not about.get("canceled"):
            self.problems.append(f"not loaded: {about['errorText']}")
        elif event == "Runtime.exceptionThrown":
            self.problems.append(json.dumps(about["exceptionDetails"]))
        elif event == "Runtime.consoleAPICalled" and about["type"] in {"error", "assert"}:
            self.problems.append(json.dumps(about["args"]))
        elif event == "Log.entryAdded" and about["entry"]["level"] == "error":
            self.problems.append(f"{about['entry']['text']} {about['entry'].get('url', '')}")


@contextlib.contextmanager
def page(executable: str) -> Iterator[Page]:
    """A tab of a browser with a profile of its own, which ends with the block."""
    commands, events = os.pipe(), os.pipe()
    with tempfile.TemporaryDirectory(prefix="cr", ignore_cleanup_errors=True) as profile:
        # The pipes have to be descriptors 3 and 4; a shell puts them there.
        script = f'exec "$@" 3<&{commands[0]} 4>&{events[1]}'
        command = ["bash", "-c", script, "bash", executable, *FLAGS, f"--user-data-dir={profile}"]
        quiet = subprocess.DEVNULL
        process = subprocess.Popen(
            command, pass_fds=(commands[0], events[1]), stdin=quiet, stdout=quiet, stderr=quiet
        )
        os.close(commands[0])
        os.close(events[1])
        try:
            yield Page(commands[1], events[0])
        finally:
            os.close(commands[1])  # at the end of its commands the browser ends
            try:
                process.wait(10)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()
            os.close(events[0])
