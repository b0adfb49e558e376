"""The earlier chat of a session: its runs, and how to continue or end the last one."""

from __future__ import annotations

from contextlib import suppress

from msgspec import Struct

from retinue.app.retinue import Retinue
from retinue.core.commands import RunQuery
from retinue.core.errors import RetinueError
from retinue.core.ids import RunId
from retinue.core.run import CHAT, HistoryRef
from retinue.engine import RunView


class EarlierChat(Struct, frozen=True, kw_only=True):
    """A conversation that can be continued: its runs, oldest first, and the state of the last one."""

    runs: tuple[RunId, ...]
    last: RunView
    messages: int
    is_answering: bool
    """Whether the last event of its last run is part of an unfinished answer."""


async def earlier_chat(retinue: Retinue) -> EarlierChat | None:
    """The last chat of the retinue's session, if there was one."""
    query = RunQuery(session_id=retinue.session_id, roots_only=True)
    last = next((view for view in await retinue.supervisor.list(query) if view.label == CHAT), None)
    if last is None:
        return None
    run = await retinue.supervisor.replay(last.run_id)
    return EarlierChat(
        runs=await _chain(retinue, last.run_id),
        last=last,
        messages=len(run.history),
        is_answering=run.outcome is None and run.in_exchange,
    )


async def _chain(retinue: Retinue, run_id: RunId) -> tuple[RunId, ...]:
    """The run, preceded by the runs whose history it inherits."""
    chain = [run_id]
    accepted = await retinue.supervisor.acceptance(run_id)
    while accepted is not None and accepted.inherits is not None:
        chain.append(accepted.inherits.run_id)
        accepted = await retinue.supervisor.acceptance(accepted.inherits.run_id)
    return tuple(reversed(chain))


async def history_of(retinue: Retinue, run_id: RunId) -> HistoryRef:
    """A reference to the whole history of a run as it stands."""
    return HistoryRef(run_id, (await retinue.supervisor.replay(run_id)).seq)


async def settle(retinue: Retinue, earlier: EarlierChat) -> None:
    """End the last run of an earlier chat if its process is gone: the conversation continues in a new run.

    An interrupted answer is cancelled, with everything below it; a run that only waited for input is closed. A run
    that another process drives is left alone.
    """
    view = await retinue.supervisor.look(earlier.last.run_id)
    if view is None or view.state != "interrupted":
        return
    unfinished = [each for each in await retinue.tree(view.run_id) if each.outcome is None]
    if not earlier.is_answering and len(unfinished) == 1:
        with suppress(RetinueError):
            await (await retinue.resume(view.run_id)).close()
            return
    await retinue.cancel(view.run_id, "the chat went on without it")
