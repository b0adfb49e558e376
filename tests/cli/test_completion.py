"""Shell completion of dialects, agents, tools, providers, sessions and run ids."""

from __future__ import annotations

import asyncio
from pathlib import Path
from types import SimpleNamespace
from typing import cast

import pytest
import typer

from retinue.cli import completion
from retinue.providers.scripted import Script, ScriptedProvider, says
from tests.cli.stage import finished_run, retinue

TOOLS = """
open("ran", "w").close()

import retinue


@retinue.tool
def look_up(word: str) -> str:
    "Look a word up."
    return word
"""

SETTINGS = """
[agents.dig]
[agents.draw]
[providers.near]
wire = "openai-chat"
[tools]
modules = ["./mytools.py"]
"""


def line(**params: object) -> typer.Context:
    """What was typed before the value that is completed."""
    return cast("typer.Context", SimpleNamespace(params=params))


def test_names_are_completed(folder: Path, capfd: pytest.CaptureFixture[str]) -> None:
    (folder / "retinue.toml").write_text(SETTINGS)
    (folder / "mytools.py").write_text(TOOLS)

    assert completion.dialects("s") == ["spec"]
    assert completion.agents(line(), "d") == ["dig", "draw"]
    assert completion.providers(line(), "ne") == ["near"]
    assert "openai-chat" in completion.providers(line(), "openai")
    assert completion.tools(line(), "file_read,file_wr") == ["file_read,file_write"]
    assert completion.tools(line(), "file_read,look") == ["file_read,look_up"]
    assert capfd.readouterr() == ("", "")
    assert not (folder / "ran").exists()


def test_the_settings_and_agent_files_of_the_line_are_used(folder: Path) -> None:
    (folder / "other.toml").write_text("[agents.paint]\n")
    (folder / "crew").mkdir()
    (folder / "crew" / "sweep.md").write_text("---\nname: sweep\ndescription: Sweeps\n---\nYou sweep.\n")

    assert completion.agents(line(config="other.toml", agents=["crew"]), "") == ["sweep", "paint"]


def test_runs_and_sessions_are_completed(folder: Path, home: Path) -> None:
    provider = ScriptedProvider(Script().play("main", says("Found.")))
    run_id = asyncio.run(finished_run(home, provider, "Find\n\x1b[2Jit.", session="audit"))

    assert completion.runs("") == [(run_id[-8:], "Find ␛[2Jit.")]
    assert completion.runs(run_id[:20]) == [(run_id, "Find ␛[2Jit.")]
    assert completion.sessions("au") == ["audit"]


def test_an_error_completes_nothing(folder: Path) -> None:
    (folder / "retinue.toml").write_text("not toml")

    assert (completion.agents(line(), ""), completion.runs("")) == ([], [])


@pytest.mark.real_time
@pytest.mark.parametrize(
    ("words", "completed"),
    [
        ("retinue run --dialect sp", ["spec"]),
        ("retinue run --tools look", ["look_up"]),
        ("retinue run --agent d", ["dig", "draw"]),
        ("retinue chat --agents crew --agent s", ["sweep"]),
        ("retinue agents show di", ["dig"]),
        ("retinue memory list dr", ["draw"]),
        ("retinue models ne", ["near"]),
    ],
)
async def test_a_shell_asks_the_program(folder: Path, words: str, completed: list[str]) -> None:
    (folder / "retinue.toml").write_text(SETTINGS)
    (folder / "mytools.py").write_text(TOOLS)
    (folder / "crew").mkdir()
    (folder / "crew" / "sweep.md").write_text("---\nname: sweep\ndescription: Sweeps\n---\nYou sweep.\n")
    env = {"_RETINUE_COMPLETE": "complete_bash", "COMP_WORDS": words, "COMP_CWORD": str(len(words.split()) - 1)}

    asked = await retinue(env=env)

    assert (asked.stdout.split(), asked.stderr) == (completed, "")
