"""Workspaces of agents through the command line: an agent cannot choose where another one works."""

from __future__ import annotations

import asyncio
import os
from pathlib import Path

import pytest

from retinue.app.open import default_home
from retinue.app.open import open as open_retinue
from retinue.app.run_spec import LaunchConfig
from retinue.providers.catalog import provider_config
from retinue.providers.scripted import calls, says, together
from retinue.testing.fake_chat import ChatScript
from tests.cli.conftest import Cli
from tests.cli.stage import Ended, retinue, serving

SETTINGS = """
[risk_profiles.wide]
level = "full"
require_approval_for_medium_risk = false
block_high_risk_commands = false
allowed_commands = ["mv", "ln", "cat", "ls", "echo"]

[agents.lead]
system_prompt = "You lead."
tools = ["shell"]
risk_profile = "wide"

[agents.helper]
system_prompt = "You help."
tools = ["file_read", "file_write", "shell"]
risk_profile = "wide"

[agents.helper.workspace]
path = "./research"
"""


@pytest.mark.real_time
@pytest.mark.usefixtures("sandbox")
def test_a_helper_does_not_work_behind_a_link_that_its_caller_made(cli: Cli, folder: Path, tmp_path: Path) -> None:
    outside = tmp_path / "outside"
    outside.mkdir()
    (outside / "key").write_text("SECRET")
    (folder / "research").mkdir()
    (folder / "retinue.toml").write_text(SETTINGS)
    script = (
        ChatScript()
        .play(
            calls("shell", command=f"mv research old && ln -s {outside} research"),
            calls("delegate", agent="helper", prompt="read it"),
            says("Done."),
            words="You lead.",
        )
        .play(
            together(
                calls("file_read", path="key"),
                calls("file_write", path="made", content="OWNED"),
                calls("shell", command="cat key; echo OWNED > written"),
            ),
            says("Read."),
            words="You help.",
        )
    )
    with serving(script) as vendor:
        flags = ("--quiet", "--yes", "--dialect", "zeroclaw", "--base-url", vendor.base_url, "--model", "m")
        ended = cli("run", *flags, "--agent", "lead", "go")
        sent = [str(request.body) for request in vendor.requests]

    assert (ended.code, ended.stdout) == (0, "Done.\n")
    assert os.readlink(folder / "research") == str(outside)
    assert sum("leads through a link in a folder that an agent may write" in body for body in sent) == 1
    assert "SECRET" not in "".join(sent)
    assert os.listdir(outside) == ["key"]


def test_a_run_is_not_resumed_in_a_folder_that_is_behind_a_link_now(cli: Cli, folder: Path, tmp_path: Path) -> None:
    file = tmp_path / "lines.json"
    file.write_text('[{"say": "Let me th", "ending": "silence"}]')
    place = folder / "sub"
    place.mkdir()

    async def abandoned() -> str:
        launch_config = LaunchConfig(
            model=str(file), provider_configs=(provider_config("scripted"),), workspace=str(place)
        )
        async with open_retinue(model=f"scripted:{file}", home=default_home(), dialects=()) as owner:
            owner.launch_config = launch_config
            return (await owner.spawn("Think.")).run_id

    run_id = asyncio.run(abandoned())
    file.write_text('[{"say": "I thought."}]')
    place.rename(folder / "old")
    place.symlink_to("/")
    refused = cli("runs", "resume", run_id)
    place.unlink()
    (folder / "old").rename(place)
    resumed = cli("runs", "resume", run_id, "--quiet")

    assert refused == Ended(
        2, "", f"error: the run's folder {place} cannot be entered: there is a link on its path now\n"
    )
    assert resumed == Ended(0, "I thought.\n", "")


@pytest.mark.real_time
@pytest.mark.usefixtures("home")
async def test_a_job_is_not_executed_in_a_folder_that_is_behind_a_link_now(folder: Path, tmp_path: Path) -> None:
    place, outside = folder / "sub", tmp_path / "outside"
    place.mkdir()
    outside.mkdir()
    added = await retinue("cron", "add", "look", "--every", "1d", "--shell", "ls", cwd=place)
    place.rename(folder / "old")
    place.symlink_to(outside)

    refused = await retinue("cron", "run-now", "look", cwd=folder)

    assert added.code == 0
    reason = "there is a link on its path now"
    assert (refused.code, refused.stdout) == (2, "")
    assert refused.stderr == f"error: the job's folder {place} cannot be entered: {reason}\n"
