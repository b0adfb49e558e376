"""Agent programs in settings: the command line, mistakes in the section, and what a stored run has of a program."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from retinue.app.run_spec import LaunchConfig
from retinue.core.errors import BadInput
from retinue.providers.acp import AgentProgram
from retinue.providers.catalog import provider_config
from tests.mcp_server.harness import environment
from tests.providers.acp.harness import AGENT, PYTHON, Scene

PROGRAM = AgentProgram(command=("agent", "--acp"), env=("KEY",))


def command(path: Path, *words: str) -> subprocess.CompletedProcess[str]:
    variables = {name: os.environ[name] for name in ("SCRIPT", "RESUMED", "ABILITIES", "LOG")}
    return subprocess.run(
        [sys.executable, "-m", "retinue", *words],
        cwd=path,
        env=environment(path) | variables,
        capture_output=True,
        text=True,
        timeout=60,
        stdin=subprocess.DEVNULL,
        check=False,
    )


def test_a_run_on_the_command_line_uses_an_agent_of_the_settings(tmp_path: Path) -> None:
    scene = Scene(tmp_path)
    scene.environment([["ask", "1", "a.txt", "edit"], ["say", "Done."]])
    lines = ['wire = "acp"', f"command = {json.dumps([PYTHON, str(AGENT)])}", "sandbox = false"]
    (tmp_path / "retinue.toml").write_text(
        "\n".join(["[providers.helper]", *lines, 'env = ["SCRIPT", "RESUMED", "ABILITIES", "LOG"]'])
    )

    ran = command(tmp_path, "run", "--json", "--yes", "Go.")

    found = json.loads(ran.stdout)
    assert (ran.returncode, found["status"], found["text"]) == (0, "completed", "Done."), ran.stderr
    assert "model default (helper, acp)" in ran.stderr


@pytest.mark.parametrize(
    ("lines", "error"),
    [
        ('wire = "acp"', "the wire acp needs the command of an agent program"),
        ('wire = "openai-chat"\ncommand = ["x"]', "a command is for the wire acp"),
        ('wire = "acp"\ncommand = ["x"]\nbase_url = "http://localhost"', "acp takes no base URL"),
        ('wire = "acp"\ncommand = ["x"]\ntop_p = 0.5', "top_p: the wire acp does not have it"),
        ('wire = "acp"\ncommand = ["x"]\nenv = ["sk-1234 5"]', "expected the name of an environment variable"),
    ],
)
def test_a_mistake_in_the_section_is_named(tmp_path: Path, lines: str, error: str) -> None:
    Scene(tmp_path).environment()
    (tmp_path / "retinue.toml").write_text(f"[providers.helper]\n{lines}\n")

    ran = command(tmp_path, "run", "Go.")

    assert (ran.returncode, error in ran.stderr) == (2, True), ran.stderr


def test_a_stored_run_does_not_name_the_program() -> None:
    config = provider_config("helper", wire="acp", program=PROGRAM)
    text = LaunchConfig(provider_configs=(config,)).text()

    assert "--acp" not in text
    assert json.loads(text)["contacts"] == [{"name": "helper", "wire": "acp"}]


def test_a_key_is_given_by_the_environment_alone() -> None:
    with pytest.raises(BadInput, match="name the variables that the program needs in env"):
        provider_config("helper", wire="acp", program=PROGRAM, api_key_env="KEY")
