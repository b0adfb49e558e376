"""Shell completion of dialects, agents, tools, providers, sessions and run ids."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from retinue.cli import completion
from retinue.providers.scripted import Script, ScriptedProvider, says
from tests.cli.stage import finished_run, retinue


def test_names_are_completed(folder: Path) -> None:
    (folder / "retinue.toml").write_text('[agents.dig]\n[agents.draw]\n[providers.near]\nwire = "openai-chat"\n')

    assert completion.dialects("s") == ["spec"]
    assert completion.agents("d") == ["dig", "draw"]
    assert completion.providers("ne") == ["near"]
    assert "openai-chat" in completion.providers("openai")
    assert completion.tools("file_read,file_wr") == ["file_read,file_write"]


def test_runs_and_sessions_are_completed(folder: Path, home: Path) -> None:
    provider = ScriptedProvider(Script().play("main", says("Found.")))
    run_id = asyncio.run(finished_run(home, provider, "Find\n\x1b[2Jit.", session="audit"))

    assert completion.runs("") == [(run_id[-8:], "Find ␛[2Jit.")]
    assert completion.runs(run_id[:20]) == [(run_id, "Find ␛[2Jit.")]
    assert completion.sessions("au") == ["audit"]


def test_an_error_completes_nothing(folder: Path) -> None:
    (folder / "retinue.toml").write_text("not toml")

    assert (completion.agents(""), completion.runs("")) == ([], [])


@pytest.mark.real_time
async def test_a_shell_asks_the_program(folder: Path) -> None:
    env = {"_RETINUE_COMPLETE": "complete_bash", "COMP_WORDS": "retinue run --dialect sp", "COMP_CWORD": "3"}

    assert (await retinue(env=env)).stdout.split() == ["spec"]
