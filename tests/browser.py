"""A real headless Chromium, driven over its own debugging pipe: no driver program, no port, no dependency."""

from __future__ import annotations

import base64
import json
import os
import selectors
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from types import TracebackType
from typing import Any

NAMES = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable", "chrome")
FLAGS = (
    "--headless", "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run",
    "--disable-background-networking", "--disable-component-update", "--disable-sync",
    "--disable-default-apps", "--disable-extensions",
    "--disable-dev-shm-usage", "--hide-scrollbars", "--host-resolver-rules=MAP * ~NOTFOUND", "--remote-debugging-pipe",
)  # fmt: skip
_START = "import os,sys; os.dup2(int(sys.argv[1]),3); os.dup2(int(sys.argv[2]),4); os.execv(sys.argv[3],sys.argv[3:])"
SECONDS = 60.0
"""Longest wait for any one answer of the browser [s]."""


def find() -> str | None:
    """Path of a Chromium on this machine, or None."""
    named = os.environ.get("CHROMIUM")
    return named or next((path for name in NAMES if (path := shutil.which(name))), None)


class Browser:
    """One browser process with an empty profile; a context manager."""

    def __init__(self, binary: str) -> None:
        self.binary = binary
        self._number = 0
        self._buffer = b""
        self._events: list[dict[str, Any]] = []

    def __enter__(self) -> Browser:
        self._profile = tempfile.TemporaryDirectory(prefix="advisor-chromium-", ignore_cleanup_errors=True)
        there, self._out = os.pipe()
        self._in, back = os.pipe()
        self._selector = selectors.DefaultSelector()
        self._selector.register(self._in, selectors.EVENT_READ)
        command = [sys.executable, "-S", "-c", _START, str(there), str(back), self.binary, *FLAGS]
        self._process = subprocess.Popen(
            [*command, f"--user-data-dir={self._profile.name}", "about:blank"],
            pass_fds=(there, back),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            start_new_session=True,
        )
        os.close(there)
        os.close(back)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        try:
            self.call("Browser.close")
            self._process.wait(10)
        except (OSError, RuntimeError, subprocess.TimeoutExpired):
            pass
        finally:
            if self._process.poll() is None:
                os.killpg(self._process.pid, 9)
                self._process.wait()
            self._selector.close()
            os.close(self._in)
            os.close(self._out)
            self._profile.cleanup()

    def call(self, method: str, session: str | None = None, **parameters: Any) -> dict[str, Any]:
        """Send one command of the Chrome DevTools Protocol and wait for its answer.

        Raises:
            RuntimeError: the browser says no, or says nothing.
        """
        self._number += 1
        message: dict[str, Any] = {"id": self._number, "method": method, "params": parameters}
        if session:
            message["sessionId"] = session
        os.write(self._out, json.dumps(message).encode() + b"\0")
        limit = time.monotonic() + SECONDS
        while True:
            answer = self._receive(limit)
            if answer.get("id") == self._number:
                if "error" in answer:
                    raise RuntimeError(f"{method}: {answer['error']}")
                result: dict[str, Any] = answer["result"]
                return result
            self._events.append(answer)

    def wait_for(self, method: str, session: str) -> dict[str, Any]:
        """The next (or an already seen) event of that name."""
        limit = time.monotonic() + SECONDS
        while True:
            for event in self._events:
                if event.get("method") == method and event.get("sessionId") == session:
                    self._events.remove(event)
                    return event
            self._events.append(self._receive(limit))

    def events(self, session: str) -> list[dict[str, Any]]:
        """Everything the page reported so far."""
        return [event for event in self._events if event.get("sessionId") == session]

    def _receive(self, limit: float) -> dict[str, Any]:
        while b"\0" not in self._buffer:
            if not self._selector.select(max(0.0, limit - time.monotonic())):
                raise RuntimeError(f"{self.binary} did not answer within {SECONDS:.0f} s")
            part = os.read(self._in, 1 << 20)
            if not part:
                raise RuntimeError(f"{self.binary} closed its pipe")
            self._buffer += part
        line, self._buffer = self._buffer.split(b"\0", 1)
        message: dict[str, Any] = json.loads(line)
        return message

    def open(self, path: Path, width: int = 1100, height: int = 900, scheme: str = "light") -> Page:
        """Open a local file in a new page of that size and colour scheme."""
        target = self.call("Target.createTarget", url="about:blank")["targetId"]
        session = self.call("Target.attachToTarget", targetId=target, flatten=True)["sessionId"]
        page = Page(self, session, target)
        for domain in ("Page", "Runtime", "Log", "Network"):
            page.call(f"{domain}.enable")
        page.call(
            "Emulation.setDeviceMetricsOverride", width=width, height=height, deviceScaleFactor=1, mobile=width < 500
        )
        page.call("Emulation.setEmulatedMedia", features=[{"name": "prefers-color-scheme", "value": scheme}])
        page.call("Page.navigate", url=path.resolve().as_uri())
        self.wait_for("Page.loadEventFired", session)
        return page


class Page:
    """One open page."""

    def __init__(self, browser: Browser, session: str, target: str) -> None:
        self.browser, self.session, self.target = browser, session, target

    def call(self, method: str, **parameters: Any) -> dict[str, Any]:
        return self.browser.call(method, self.session, **parameters)

    def evaluate(self, script: str) -> Any:
        """Value of a JavaScript expression (or awaited promise) in the page.

        Raises:
            RuntimeError: the script threw.
        """
        answer = self.call("Runtime.evaluate", expression=script, returnByValue=True, awaitPromise=True)
        if "exceptionDetails" in answer:
            raise RuntimeError(str(answer["exceptionDetails"]))
        return answer["result"].get("value")

    def complaints(self) -> list[str]:
        """Console messages, uncaught errors and log entries (blocked requests, policy violations) so far."""
        self.evaluate("new Promise(requestAnimationFrame)")
        found = []
        for event in self.browser.events(self.session):
            if event["method"] == "Runtime.consoleAPICalled":
                found.append(json.dumps(event["params"]["args"]))
            elif event["method"] == "Runtime.exceptionThrown":
                found.append(json.dumps(event["params"]["exceptionDetails"]))
            elif event["method"] == "Log.entryAdded":
                found.append(event["params"]["entry"]["text"])
        return found

    def requests(self) -> list[str]:
        """Addresses the page asked for, the file itself and data: URLs left out."""
        asked = [
            event["params"]["request"]["url"]
            for event in self.browser.events(self.session)
            if event["method"] == "Network.requestWillBeSent"
        ]
        return [url for url in asked[1:] if not url.startswith("data:")]

    def screenshot(self, path: Path) -> Path:
        """The whole page, not only what fits the window."""
        picture = self.call("Page.captureScreenshot", format="png", captureBeyondViewport=True)
        path.write_bytes(base64.b64decode(picture["data"]))
        return path

    def pdf(self) -> bytes:
        """The page as printed."""
        return base64.b64decode(self.call("Page.printToPDF", printBackground=False)["data"])

    def names(self) -> list[tuple[str, str]]:
        """Role and accessible name of everything a screen reader would meet."""
        nodes = self.call("Accessibility.getFullAXTree")["nodes"]
        return [
            (node["role"]["value"], node.get("name", {}).get("value", ""))
            for node in nodes
            if not node.get("ignored") and "role" in node
        ]

    def close(self) -> None:
        self.browser.call("Target.closeTarget", targetId=self.target)
