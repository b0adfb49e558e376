"""The chat that a session had before: which run was its last, and what became of it."""

from __future__ import annotations

from contextlib import suppress

from msgspec import Struct

from retinue.app.retinue import Retinue
from retinue.core.commands import RunQuery
from retinue.core.errors import RetinueError
from retinue.core.ids import RunId
from retinue.core.run import CHAT, HistoryRef
from retinue.engine import RunView


class Past(Struct, frozen=True, kw_only=True):
    """A conversation that can be gone on with: its runs, oldest first, and how the last one stands."""

    runs: tuple[RunId, ...]
    last: RunView
    messages: int
    is_answering: bool
    """Whether its last answer was under way when it was last heard of."""


async def earlier_chat(retinue: Retinue) -> Past | None:
    """The last chat of the retinue's session, if there was one."""
    query = RunQuery(session_id=retinue.session_id, roots_only=True)
    last = next((view for view in await retinue.supervisor.list(query) if view.label == CHAT), None)
    if last is None:
        return None
    run = await retinue.supervisor.replay(last.run_id)
    return Past(
        runs=await _chain(retinue, last.run_id),
        last=last,
        messages=len(run.history),
        is_answering=run.outcome is None and run.in_exchange,
    )


async def _chain(retinue: Retinue, run_id: RunId) -> tuple[RunId, ...]:
    """The run, and before it those whose history it goes on with."""
    chain = [run_id]
    accepted = await retinue.supervisor.acceptance(run_id)
    while accepted is not None and accepted.inherits is not None:
        chain.append(accepted.inherits.run_id)
        accepted = await retinue.supervisor.acceptance(accepted.inherits.run_id)
    return tuple(reversed(chain))


async def inheritance(retinue: Retinue, run_id: RunId) -> HistoryRef:
    """The whole history of a run, as it stands."""
    return HistoryRef(run_id, (await retinue.supervisor.replay(run_id)).seq)


async def lay_to_rest(retinue: Retinue, past: Past) -> None:
    """End what a process that is gone has left open: the conversation goes on elsewhere from now on.

    An answer that was interrupted is cancelled, with everything below it; a run that only waited for input is closed.
    What another process drives is left alone.
    """
    view = await retinue.supervisor.look(past.last.run_id)
    if view is None or view.state != "interrupted":
        return
    unfinished = [each for each in await retinue.tree(view.run_id) if each.outcome is None]
    if not past.is_answering and len(unfinished) == 1:
        with suppress(RetinueError):
            await (await retinue.resume(view.run_id)).close()
            return
    await retinue.cancel(view.run_id, "the chat went on without it")
