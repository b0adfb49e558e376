"""YAML settings on the command line, and the telemetry of `xzatoma` on stderr."""

from __future__ import annotations

import json
import logging
from collections.abc import Iterator
from pathlib import Path

import pytest

from retinue.dialects.xzatoma.child import TARGET
from tests.cli.conftest import Cli

LINES = {
    "main: Why is it slow?": [
        {"call": {"name": "subagent", "arguments": {"label": "dig", "task_prompt": "find it"}}},
        {"say": "Thanks."},
    ],
    "main: find it": [{"say": "It is the pool."}, {"say": "Too small."}],
}


@pytest.fixture(autouse=True)
def level_of_before() -> Iterator[None]:
    """Restore the log level of the target after the test."""
    yield
    logging.getLogger(TARGET).setLevel(logging.NOTSET)


def asked(cli: Cli, folder: Path, settings: str, log: str = "") -> tuple[int, str, str]:
    """Run a root that delegates once with these settings; stdout, and stderr without times."""
    (folder / "lines.json").write_text(json.dumps(LINES))
    (folder / "retinue.yaml").write_text(settings)
    ended = cli(
        *("run", "--provider", "scripted", "--model", "lines.json", "--dialect", "xzatoma", "--quiet"),
        "Why is it slow?",
        env={"RETINUE_LOG": log},
    )
    return ended.code, ended.stdout, "\n".join(line.partition("Z ")[2] or line for line in ended.stderr.splitlines())


def test_telemetry_is_enabled_by_its_log_target(cli: Cli, folder: Path) -> None:
    settings = "agent:\n  subagent:\n    default_max_turns: 7\n"
    assert asked(cli, folder, settings) == (0, "Thanks.\n", "")

    code, answer, result = asked(cli, folder, settings, "off,retinue.tools.subagent=debug")
    assert (code, answer) == (0, "Thanks.\n")
    spawned, completed = result.splitlines()
    assert spawned == (
        "INFO retinue.tools.subagent subagent.event=spawn subagent.label=dig subagent.depth=1 subagent.max_turns=7 "
        'subagent.allowed_tools=["fetch","grep","file_ops","terminal","artifact_read"] Spawning subagent'
    )
    assert completed.startswith("INFO retinue.tools.subagent subagent.event=complete subagent.label=dig ")
    assert asked(cli, folder, settings + "    telemetry_enabled: false\n", "info")[2].count("subagent.event") == 0


def test_a_settings_error_has_the_text_of_the_document(cli: Cli, folder: Path) -> None:
    assert asked(cli, folder, "agent:\n  subagent:\n    max_depth: 0\n") == (
        2,
        "",
        "error: retinue.yaml:3: Configuration error: agent.subagent.max_depth must be greater than 0",
    )


def test_init_does_not_write_a_second_settings_file(cli: Cli, folder: Path) -> None:
    (folder / "retinue.yml").touch()

    ended = cli("init")

    assert (ended.code, ended.stderr) == (
        2,
        "error: retinue.yml exists, and a folder has only one settings file: rename or remove it first\n",
    )
    assert not (folder / "retinue.toml").exists()
