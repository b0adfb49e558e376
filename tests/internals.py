"""An open retinue from inside: live runs, tools, and the internals of the engine for tests that measure them."""

from __future__ import annotations

from functools import partial
from typing import Any

import pytest

from retinue.app.retinue import Retinue
from retinue.core.ids import RunId
from retinue.core.ports import Tool
from retinue.core.state import Run
from retinue.engine import Tuning, build_engine
from retinue.engine.context import EngineContext


def live_run(retinue: Retinue, run_id: RunId) -> Run:
    """The state of a run that this retinue drives."""
    live = retinue.supervisor.live(run_id)
    assert live is not None, run_id
    return live.run


def tool_of(retinue: Retinue, name: str, dialect: str) -> Tool:
    """A tool as the runs of a dialect call it."""
    tool = engine_of(retinue).toolbox.find(name, (dialect,))
    assert tool is not None, name
    return tool


def engine_of(retinue: Retinue) -> EngineContext:
    """The dependencies of the engine: for counting commits, reading the store at once, replacing a rate limiter."""
    return retinue.supervisor._engine


def tune(monkeypatch: pytest.MonkeyPatch, **tuning: Any) -> None:
    """Open every retinue of this test with these sizes and pauses of the engine."""
    monkeypatch.setattr("retinue.app.open.build_engine", partial(build_engine, tuning=Tuning(**tuning)))
