"""What retinue sends to agents, against the models of the protocol's own package."""

from pathlib import Path
from typing import Any

import pytest
from acp import schema
from pydantic import BaseModel, ValidationError

from retinue import File, Image
from tests.providers.acp.harness import Scene

pytestmark = pytest.mark.real_time  # child processes

PARAMS: dict[str, type[BaseModel]] = {
    "initialize": schema.InitializeRequest,
    "session/new": schema.NewSessionRequest,
    "session/load": schema.LoadSessionRequest,
    "session/prompt": schema.PromptRequest,
    "session/cancel": schema.CancelNotification,
}


def strictly(model: type[BaseModel], value: dict[str, Any]) -> None:
    """Raise for a value that the model does not accept, or of which it does not know a part."""
    read = model.model_validate(value)
    assert read.model_dump(mode="json", by_alias=True, exclude_unset=True) == value


async def test_all_that_agents_are_sent_fits_the_schema(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    scene = Scene(tmp_path)
    first = [["ask", "1", "a", "edit"], ["die_once", str(tmp_path / "died")]]
    takes = {"promptCapabilities": {"image": True, "embeddedContext": True}}
    async with scene.open(first, resumed=[[["wait"]]], abilities=takes) as r:
        files = [Image(b"\x89PNG....", name="a.png"), File(b"%PDF-1", name="b c.pdf")]
        run = await r.spawn("Go.", attachments=files)
        await scene.pids()
        await run.cancel()
        await run.wait()

    seen = {message["method"] for message in scene.messages() if "method" in message}
    assert seen == set(PARAMS)
    for message in scene.messages():
        if "method" in message:
            strictly(PARAMS[message["method"]], message["params"])
        elif "result" in message:
            strictly(schema.RequestPermissionResponse, message["result"])


def test_the_comparison_notices_an_unknown_field() -> None:
    with pytest.raises((AssertionError, ValidationError)):
        strictly(schema.CancelNotification, {"sessionId": "s", "unknown": 1})
