"""The pytest plugin: the fixture `retinue`, async tests without a plugin for them, and `--record`.

It is loaded by every pytest of an environment with Retinue, so it imports nothing of it before the fixture is used.
"""

from __future__ import annotations

import asyncio
import inspect
import re
from collections.abc import Callable
from contextlib import AbstractAsyncContextManager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from retinue.app.retinue import Retinue

FIXTURE = "retinue"
FOLDER = "recordings"
MODES = ("none", "new", "all")

Open = Callable[..., "AbstractAsyncContextManager[Retinue]"]


def pytest_addoption(parser: pytest.Parser) -> None:
    """Add `--record`."""
    group = parser.getgroup("retinue")
    group.addoption(
        "--record",
        choices=MODES,
        default="none",
        help="Recordings of the fixture retinue: play them (none), make missing ones (new), or make all anew (all).",
    )


def pytest_pyfunc_call(pyfuncitem: pytest.Function) -> bool | None:
    """Run async tests that use the fixture on an event loop of their own."""
    if FIXTURE not in pyfuncitem.fixturenames or not inspect.iscoroutinefunction(pyfuncitem.obj):
        return None
    arguments: dict[str, Any] = pyfuncitem.funcargs
    names = pyfuncitem._fixtureinfo.argnames  # pyright: ignore[reportPrivateUsage] as pytest's own caller does
    asyncio.run(pyfuncitem.obj(**{name: arguments[name] for name in names}))
    return True


@pytest.fixture(name=FIXTURE)
def _retinue(request: pytest.FixtureRequest) -> Open:
    """Opens a retinue that plays the recording of this test: `async with retinue(agents=[...]) as r:`.

    The recording is `recordings/MODULE.TEST.jsonl` next to the test, or the file in `recording=`. Options are those of
    `retinue.open`; `provider` and `base_url` are used only for recording.
    """
    mode = str(request.config.getoption("--record"))

    def open_test(*, recording: str | Path | None = None, live_tools: bool = False, **options: Any) -> Any:
        from retinue.recording import record, replay

        file = _file(request) if recording is None else request.path.parent / recording
        if mode == "all" or (mode == "new" and not file.exists()):
            return record(file, **options)
        if not file.exists():
            pytest.fail(f"there is no recording {file}: make it with pytest --record=new", pytrace=False)
        played = {name: value for name, value in options.items() if name not in ("provider", "base_url")}
        return replay(file, live_tools=live_tools, **played)

    return open_test


def _file(request: pytest.FixtureRequest) -> Path:
    name = re.sub(r"[^\w.-]+", "-", request.node.name).strip("-")
    return request.path.parent / FOLDER / f"{request.path.stem}.{name}.jsonl"
