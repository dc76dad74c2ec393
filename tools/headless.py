"""A headless Chromium for pages: what they say, what they complain about, how they look. No package is needed for it.

It talks to the browser's debugging pipe: messages of the DevTools protocol, JSON, each ended by a zero byte.
"""

from __future__ import annotations

import base64
import contextlib
import fcntl
import json
import os
import select
import shutil
import subprocess
import tempfile
import time
from pathlib import Path
from typing import Any

__all__ = ["Browser", "chromium"]

_NAMES = ("chromium", "chromium-browser", "google-chrome", "chrome")
_SECONDS = 60.0


def chromium() -> str | None:
    """The browser's path, or None if there is none."""
    return next(filter(None, map(shutil.which, _NAMES)), None)


class Browser:
    """A browser with one tab; use it as a context.

    Attributes:
      complaints: errors and warnings of the console, exceptions, and what the page asked the network for, since `open`.
    """

    def __init__(self) -> None:
        path = chromium()
        if path is None:
            raise FileNotFoundError(f"no browser is here: install one of {', '.join(_NAMES)}.")
        self.complaints: list[str] = []
        self._number = 0
        self._answers: dict[int, dict[str, Any]] = {}
        self._loaded = False
        self._rest = b""
        self._home = tempfile.TemporaryDirectory(prefix="nki_hf_browser_", ignore_cleanup_errors=True)
        their_read, self._write = os.pipe()
        self._read, their_write = os.pipe()
        flags = (
            "--headless=new",
            "--remote-debugging-pipe",
            "--no-sandbox",
            "--disable-gpu",
            "--hide-scrollbars",
            "--no-first-run",
            "--disable-dev-shm-usage",
            "--disable-extensions",
            "--disable-background-networking",
            f"--user-data-dir={self._home.name}",
        )
        above = [fcntl.fcntl(number, fcntl.F_DUPFD_CLOEXEC, 10) for number in (their_read, their_write)]
        self._process = subprocess.Popen(
            [path, *flags, "about:blank"],
            preexec_fn=lambda: [os.dup2(number, place) for number, place in zip(above, (3, 4), strict=True)],
            pass_fds=(3, 4),  # it reads 3 and writes 4
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        for number in above:
            os.close(number)
        os.close(their_read)
        os.close(their_write)
        self._session = ""
        target = next(t for t in self.ask("Target.getTargets")["targetInfos"] if t["type"] == "page")
        self._session = self.ask("Target.attachToTarget", targetId=target["targetId"], flatten=True)["sessionId"]
        for domain in ("Page", "Runtime", "Log", "Network"):
            self.ask(f"{domain}.enable")

    def __enter__(self) -> Browser:
        return self

    def __exit__(self, *_: object) -> None:
        session, self._session = self._session, ""
        with contextlib.suppress(Exception):
            self._send("Browser.close", {})
            self._process.wait(10)
        del session
        if self._process.poll() is None:
            self._process.kill()
            self._process.wait()
        os.close(self._read)
        os.close(self._write)
        self._home.cleanup()

    def open(self, page: Path, *, width: int, height: int = 900, dark: bool = False, ready: str = "true") -> None:
        """Show a file in a window of `width` x `height` CSS pixels; returns when the expression `ready` holds."""
        self.ask("Emulation.setDeviceMetricsOverride", width=width, height=height, deviceScaleFactor=1, mobile=width < 500)
        scheme = "dark" if dark else "light"
        self.ask("Emulation.setEmulatedMedia", features=[{"name": "prefers-color-scheme", "value": scheme}])
        self.complaints.clear()
        self._loaded = False
        self.ask("Page.navigate", url=page.resolve().as_uri())
        self._until(lambda: self._loaded, f"{page} has loaded")
        end = time.monotonic() + _SECONDS
        while not self.value(ready):
            if time.monotonic() > end:
                raise TimeoutError(f"{page} is not ready: {ready} does not hold; {self.complaints}")
            time.sleep(0.02)

    def value(self, expression: str) -> Any:
        """What a JavaScript expression gives; a promise is waited for."""
        found = self.ask("Runtime.evaluate", expression=expression, returnByValue=True, awaitPromise=True)
        if "exceptionDetails" in found:
            raise RuntimeError(f"{expression}: {found['exceptionDetails'].get('exception', found['exceptionDetails'])}")
        return found["result"].get("value")

    def text(self) -> str:
        """The page's text as a reader sees it."""
        return str(self.value("document.body.innerText"))

    def overflowing(self) -> list[str]:
        """Elements that reach over the window's right edge, where nothing that holds them lets them be moved."""
        return list(self.value(_OVERFLOWING))

    def screenshot(self, path: Path, *, whole: bool = True) -> None:
        """Write a PNG, of the whole page or of the window."""
        taken = self.ask("Page.captureScreenshot", format="png", captureBeyondViewport=whole)
        path.write_bytes(base64.b64decode(taken["data"]))

    def mouse(self, kind: str, x: float, y: float, **more: Any) -> None:
        """A pointer's event: `mouseMoved`, `mousePressed`, `mouseReleased` or `mouseWheel`."""
        self.ask("Input.dispatchMouseEvent", type=kind, x=x, y=y, **more)

    def ask(self, method: str, **parameters: Any) -> dict[str, Any]:
        """A command of the DevTools protocol, and its result."""
        number = self._send(method, parameters)
        self._until(lambda: number in self._answers, method)
        answer = self._answers.pop(number)
        if "error" in answer:
            raise RuntimeError(f"{method}: {answer['error']}")
        result: dict[str, Any] = answer["result"]
        return result

    def _send(self, method: str, parameters: dict[str, Any]) -> int:
        self._number += 1
        message = {"id": self._number, "method": method, "params": parameters}
        if self._session:
            message["sessionId"] = self._session
        os.write(self._write, json.dumps(message).encode() + b"\0")
        return self._number

    def _until(self, held: Any, what: str) -> None:
        end = time.monotonic() + _SECONDS
        while not held():
            if not select.select([self._read], [], [], max(0.0, end - time.monotonic()))[0]:
                raise TimeoutError(f"the browser did not answer within {_SECONDS:g} s: {what}")
            data = os.read(self._read, 1 << 16)
            if not data:
                raise EOFError("the browser has ended")
            *messages, self._rest = (self._rest + data).split(b"\0")
            for message in messages:
                self._take(json.loads(message))

    def _take(self, message: dict[str, Any]) -> None:
        if "id" in message:
            self._answers[message["id"]] = message
            return
        name, found = message.get("method"), message.get("params", {})
        if name == "Page.loadEventFired":
            self._loaded = True
        elif name == "Runtime.exceptionThrown":
            details = found["exceptionDetails"]
            self.complaints.append(str(details.get("exception", {}).get("description", details.get("text"))))
        elif name == "Runtime.consoleAPICalled" and found["type"] in ("error", "warning", "assert"):
            self.complaints.append(" ".join(str(item.get("value", item)) for item in found["args"]))
        elif name == "Log.entryAdded" and found["entry"]["level"] in ("error", "warning"):
            self.complaints.append(found["entry"]["text"])
        elif name == "Network.requestWillBeSent" and found["request"]["url"].startswith(("http", "ws")):
            self.complaints.append(f"asks for {found['request']['url']}")


_OVERFLOWING = """(() => {
  const wide = document.documentElement.clientWidth, found = [];
  if (document.documentElement.scrollWidth > wide) found.push(`the page: ${document.documentElement.scrollWidth} of ${wide}`);
  const inside = node => {
    for (let up = node.parentElement; up; up = up.parentElement) {
      if (["auto", "scroll", "hidden", "clip"].includes(getComputedStyle(up).overflowX)) return true;
    }
    return false;
  };
  for (const node of document.querySelectorAll("body *")) {
    const box = node.getBoundingClientRect();
    if (box.width && box.right > wide + 0.5 && !inside(node)) found.push(`${node.tagName} ${node.className}: ${box.right}`);
    const style = getComputedStyle(node);
    if (style.overflowX === "hidden" && node.clientWidth && node.scrollWidth > node.clientWidth + 1) {
      found.push(`${node.tagName} ${node.className} hides ${node.scrollWidth - node.clientWidth} px`);
    }
  }
  return found;
})()"""
