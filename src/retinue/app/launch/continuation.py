"""The last conversation of a folder, for commands that continue it."""

from __future__ import annotations

from retinue.app.open import open_read_only
from retinue.core.errors import BadInput
from retinue.core.ids import SessionId
from retinue.core.run import CHAT, is_hosted
from retinue.engine import RunView

LOOKED_AT = 200
"""Newest root runs among which the one of a folder is looked for."""


async def latest_run(workspace: str, *, session: SessionId | None = None) -> RunView:
    """The newest ended root run that was started in a folder; raises `BadInput` if there is none."""
    return await _latest(workspace, session, chat=False)


async def latest_chat(workspace: str) -> RunView:
    """The newest root run of a chat in a folder, ended or not; raises `BadInput` if there is none."""
    return await _latest(workspace, None, chat=True)


async def _latest(workspace: str, session: SessionId | None, *, chat: bool) -> RunView:
    async with open_read_only() as client:
        for view in await client.list(session=session, limit=LOOKED_AT):
            if view.label != CHAT if chat else view.outcome is None or is_hosted(view.label):
                continue
            launch_config = await client.launch_config(view.run_id)
            if launch_config is not None and launch_config.workspace == workspace:
                return view
    what = "chat" if chat else "ended run"
    raise BadInput(f"there is no {what} of this folder to continue: see retinue runs")
