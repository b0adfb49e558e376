"""A real Chromium, headless, driven over its DevTools protocol; no library is needed but the HTTP client."""

from __future__ import annotations

import asyncio
import base64
import json
import os
import shutil
import signal
import tempfile
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from typing import Any

import aiohttp
import pytest

NAMES = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable")
FLAGS = (
    "--headless=new", "--remote-debugging-port=0", "--no-first-run", "--no-default-browser-check", "--disable-gpu",
    "--disable-background-networking", "--disable-component-update", "--disable-default-apps", "--disable-sync",
    "--disable-extensions", "--disable-dev-shm-usage", "--metrics-recording-only", "--mute-audio", "--hide-scrollbars",
    "--host-resolver-rules=MAP * ~NOTFOUND, EXCLUDE 127.0.0.1", "--force-color-profile=srgb",
)  # fmt: skip

PATIENCE = 180.0
"""Seconds until a page that does not change is given up. A machine with other work needs many of them."""


def program() -> str:
    """The browser of the distribution; skips the test if there is none."""
    found = next(filter(None, map(shutil.which, NAMES)), None)
    if found is None:
        pytest.skip("there is no Chromium: apt-get install chromium")
    return found


class Page:
    """A tab of the browser."""

    def __init__(self, socket: aiohttp.ClientWebSocketResponse) -> None:
        self._socket = socket
        self._number = 0
        self._answers: dict[int, asyncio.Future[Any]] = {}
        self.problems: list[str] = []
        """What the console complained about: errors of scripts, and what the policy of the page forbade."""
        self._complained = asyncio.Event()
        self.requests: list[str] = []
        self._reading = asyncio.create_task(self._read())

    async def _read(self) -> None:
        async for message in self._socket:
            value = json.loads(message.data)
            if "id" in value:
                answer = self._answers.pop(value["id"])
                if "error" in value:
                    answer.set_exception(AssertionError(value["error"]["message"]))
                else:
                    answer.set_result(value["result"])
                continue
            details = value.get("params", {})
            match value.get("method"):
                case "Runtime.exceptionThrown":
                    thrown = details["exceptionDetails"]
                    self._complain(thrown.get("exception", {}).get("description", thrown["text"]))
                case "Log.entryAdded" if details["entry"]["level"] == "error":
                    self._complain(details["entry"]["text"])
                case "Network.requestWillBeSent":
                    self.requests.append(details["request"]["url"])
                case "Page.javascriptDialogOpening":
                    self._complain(f"dialog: {details['message']}")
                case _:
                    pass

    def _complain(self, text: str) -> None:
        self.problems.append(text)
        self._complained.set()

    async def expected_problem(self) -> str:
        """Wait for the only problem that a test expects, and take it away."""
        await asyncio.wait_for(self._complained.wait(), PATIENCE)
        self._complained.clear()
        (text,) = self.problems
        self.problems.clear()
        return text

    async def send(self, method: str, **parameters: Any) -> Any:
        """Send a command of the protocol and wait for its answer."""
        self._number += 1
        answer = self._answers[self._number] = asyncio.get_running_loop().create_future()
        await self._socket.send_json({"id": self._number, "method": method, "params": parameters})
        return await asyncio.wait_for(answer, PATIENCE + 30.0)

    async def run(self, script: str) -> Any:
        """The value of an expression in the page; promises are awaited."""
        answer = await self.send("Runtime.evaluate", expression=script, awaitPromise=True, returnByValue=True)
        if "exceptionDetails" in answer:
            raise AssertionError(answer["exceptionDetails"]["exception"].get("description", script))
        return answer["result"].get("value")

    async def until(self, condition: str, *, seconds: float = PATIENCE) -> Any:
        """The first true value of an expression; it is evaluated in the page with each frame."""
        script = (
            "new Promise((done, fail) => { const end = performance.now() + %d; (function look() { let value; "
            "try { value = (%s); } catch { value = null; } if (value) done(value); else if (performance.now() > end) "
            "fail(new Error('not within time: ' + %s + ' in ' + document.body.innerText.slice(0, 600))); "
            "else setTimeout(look, 15); })(); })"
        )
        while True:
            try:
                return await self.run(script % (seconds * 1000, condition, json.dumps(condition)))
            except AssertionError as error:
                if "navigated" not in str(error):  # the page was on its way to another document
                    raise

    async def has(self, text: str, *, within: str = "body") -> None:
        """Wait until a text is shown."""
        await self.until(f"document.querySelector({json.dumps(within)})?.textContent.includes({json.dumps(text)})")

    async def click(self, selector: str, *, text: str = "") -> None:
        """Click the first element of a selector, with this text if one is given."""
        found = (
            f"[...document.querySelectorAll({json.dumps(selector)})]"
            f".find((each) => each.textContent.includes({json.dumps(text)}))"
        )
        # One step: the page may draw the element anew between two.
        await self.until(f"((each) => each && (each.click(), true))({found})")

    async def type(self, selector: str, text: str) -> None:
        """Write a text into a field."""
        await self.until(f"document.querySelector({json.dumps(selector)})")
        await self.run(f"document.querySelector({json.dumps(selector)}).focus()")
        await self.send("Input.insertText", text=text)

    async def key(self, key: str) -> None:
        """Press a key."""
        text = {"text": key} if len(key) == 1 else {"text": "\r"} if key == "Enter" else {}
        code = {"Enter": 13, "Escape": 27, "ArrowDown": 40, "ArrowUp": 38, "End": 35}.get(key, ord(key[0]))
        for kind in ("keyDown", "keyUp"):
            await self.send("Input.dispatchKeyEvent", type=kind, key=key, windowsVirtualKeyCode=code, **text)

    async def open(self, address: str) -> None:
        """Go to an address and wait until its document is complete."""
        await self.send("Page.navigate", url=address)
        await self.until("document.readyState === 'complete' && document.getElementById('main')?.children.length")

    async def size(self, width: int, height: int) -> None:
        """Give the tab a size; a small one is that of a telephone."""
        await self.send(
            "Emulation.setDeviceMetricsOverride", width=width, height=height, deviceScaleFactor=1, mobile=width < 600
        )

    async def dark(self, is_dark: bool) -> None:
        """Choose the colours that the system would ask for."""
        feature = {"name": "prefers-color-scheme", "value": "dark" if is_dark else "light"}
        await self.send("Emulation.setEmulatedMedia", features=[feature])

    async def picture(self, path: Path) -> None:
        """Write a screenshot."""
        shot = await self.send("Page.captureScreenshot", format="png")
        await asyncio.to_thread(path.write_bytes, base64.b64decode(shot["data"]))

    async def close(self) -> None:
        self._reading.cancel()
        await asyncio.gather(self._reading, return_exceptions=True)
        await self._socket.close()


class Browser:
    """A running browser with an empty profile."""

    def __init__(self, port: int, session: aiohttp.ClientSession) -> None:
        self._port = port
        self._session = session
        self._pages: list[Page] = []

    async def page(self) -> Page:
        """A new tab."""
        async with self._session.put(f"http://127.0.0.1:{self._port}/json/new?about:blank") as answer:
            address = (await answer.json())["webSocketDebuggerUrl"]
        page = Page(await self._session.ws_connect(address, max_msg_size=1 << 28))
        self._pages.append(page)
        for domain in ("Page", "Runtime", "Log", "Network"):
            await page.send(f"{domain}.enable")
        await page.size(1280, 900)
        return page

    async def close(self) -> None:
        for page in self._pages:
            await page.close()


@asynccontextmanager
async def browser() -> AsyncGenerator[Browser]:
    """A browser for one test; nothing of it stays."""
    root = ("--no-sandbox",) if hasattr(os, "geteuid") and os.geteuid() == 0 else ()  # Chromium refuses root otherwise
    path = program()
    with tempfile.TemporaryDirectory(prefix="retinue-browser-", ignore_cleanup_errors=True) as profile:
        process = await asyncio.create_subprocess_exec(
            path, *FLAGS, *root, f"--user-data-dir={profile}", "about:blank",
            stdout=asyncio.subprocess.DEVNULL, stderr=asyncio.subprocess.DEVNULL, start_new_session=True,
            env={**os.environ, "HOME": profile},
        )  # fmt: skip
        try:
            port = await asyncio.wait_for(_port(Path(profile) / "DevToolsActivePort"), PATIENCE)
            async with aiohttp.ClientSession() as session:
                started = Browser(port, session)
                try:
                    yield started
                finally:
                    await started.close()
        finally:
            with suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            await process.wait()


async def _port(file: Path) -> int:
    """The port that the browser has chosen; it writes it into its profile."""
    while True:
        with suppress(FileNotFoundError, ValueError, IndexError):
            return int((await asyncio.to_thread(file.read_text)).splitlines()[0])
        await asyncio.sleep(0.05)
