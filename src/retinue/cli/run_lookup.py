"""Runs by a part of their id: enough characters of its beginning or its end to mean one run."""

from __future__ import annotations

from collections.abc import Sequence

from retinue.app.engine_types import RunView
from retinue.app.read_only import ReadOnlyClient
from retinue.core.errors import BadInput, UnknownName
from retinue.core.ids import RunId

FEWEST = 4
MOST_LISTED = 8


async def find_run(client: ReadOnlyClient, name: str) -> RunView:
    """The run that is meant; raises for a name that means none, or several."""
    name = name.strip().lower()
    if (exact := await client.supervisor.look(name)) is not None:
        return exact
    if len(name) < FEWEST:
        raise BadInput(f"{name!r} is too short for a run's id: give {FEWEST} or more of its characters")
    run_id = meant(name, [view.run_id for view in await client.list(everyone=True)])
    return await client.look(run_id)


def meant(name: str, run_ids: Sequence[RunId]) -> RunId:
    """The only id that begins or ends with `name`.

    >>> meant("cafe", ["0194-beef", "0194-cafe"])
    '0194-cafe'
    """
    found = [run_id for run_id in run_ids if run_id.startswith(name) or run_id.endswith(name)]
    if not found:
        raise UnknownName("run", name)
    if len(found) > 1:
        listed = ", ".join(found[:MOST_LISTED]) + (", ..." if len(found) > MOST_LISTED else "")
        raise BadInput(f"{name!r} can mean {len(found)} runs: {listed}")
    return found[0]
