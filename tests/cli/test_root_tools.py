"""The tools of a root run: those of its dialect where neither `--tools` nor its agent has a list."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from retinue.providers.scripted import Line, calls, says
from retinue.testing.fake_chat import ChatScript, FakeChat, Playable
from tests.cli.conftest import Cli
from tests.cli.stage import serving

OWN = ["fetch", "grep", "file_ops", "terminal"]
"""The tools that the document of xzatoma names."""

READER = ["artifact_read"]
"""Pages through a long result; it is there where no list was given."""

DELEGATION = ["subagent", "parallel_subagent"]

EXAMPLE = {
    "label": "research_quantum_computing",
    "task_prompt": "Research quantum computing breakthroughs in 2024. Focus on: new algorithms, hardware improvements, "
    "and companies leading the field.",
    "summary_prompt": "Create an executive summary with sections: Breakthroughs, Technical Details, Commercial Impact, "
    "Future Outlook",
    "allowed_tools": ["fetch", "grep"],
    "max_turns": 8,
}
"""The complete input example of the document."""


def in_turn(*lines: Line) -> Playable:
    """These lines, one for each request."""
    left = iter(lines)
    return lambda request: next(left)


def offered(body: dict[str, Any]) -> list[str]:
    """The tools that a request offers."""
    return [tool["function"]["name"] for tool in body.get("tools", ())]


def first_result(vendor: FakeChat) -> dict[str, Any]:
    """The first result of a tool that the root read."""
    messages = max((each.body["messages"] for each in vendor.requests), key=len)
    return json.loads(next(message["content"] for message in messages if message["role"] == "tool"))


def flags(vendor: FakeChat, *more: str) -> tuple[str, ...]:
    return ("--base-url", vendor.base_url, "--model", "fake-1", *more)


@pytest.mark.promise("XZ-ROOT-TOOLS")
def test_the_input_example_of_the_document_works_as_printed(cli: Cli) -> None:
    lines = in_turn(calls("subagent", **EXAMPLE), says("Willow."), says("Breakthroughs: Willow."), says("Done."))
    with serving(lines) as vendor:
        ended = cli("run", *flags(vendor, "--dialect", "xzatoma"), "What is new?")

    assert (ended.code, ended.stdout) == (0, "Done.\n")
    root, child, summary, after = (request.body for request in vendor.requests)
    assert offered(root) == [*OWN, *READER, *DELEGATION]
    assert offered(child) == ["fetch", "grep", "subagent"]
    assert child["messages"][-1] == {"role": "user", "content": EXAMPLE["task_prompt"]}
    assert summary["messages"][-1] == {"role": "user", "content": EXAMPLE["summary_prompt"]}
    result = json.loads(after["messages"][-1]["content"])
    assert (result["success"], result["output"], result["error"]) == (True, "Breakthroughs: Willow.", None)


@pytest.mark.promise("XZ-ROOT-TOOLS")
@pytest.mark.parametrize(
    ("given", "tools"),
    [
        (["--dialect", "xzatoma"], [*OWN, *READER, *DELEGATION]),
        (["--dialect", "xzatoma", "--tools", "grep"], ["grep", *DELEGATION]),
        (["--dialect", "xzatoma", "--tools", ""], DELEGATION),
        (["--dialect", "xzatoma", "--agent", "free"], [*OWN, *READER, *DELEGATION]),
        (["--dialect", "xzatoma", "--agent", "listed"], ["file_read", *DELEGATION]),
        (["--dialect", "xzatoma", "--agent", "bare"], DELEGATION),
        (["--dialect", "spec"], ["subagent", "shared_context"]),
        (["--dialect", "none"], []),
        ([], ["subagent", "shared_context"]),
    ],
)
def test_a_list_of_tools_is_exact_and_other_dialects_keep_their_default(
    cli: Cli, folder: Path, given: Sequence[str], tools: Sequence[str]
) -> None:
    (folder / "retinue.toml").write_text(
        '[agents.free]\n[agents.listed]\ntools = ["file_read"]\n[agents.bare]\ntools = []\n'
    )
    with serving(says("Yes.")) as vendor:
        ended = cli("run", *flags(vendor, *given), "Is it?")

    assert (ended.code, offered(vendor.requests[0].body)) == (0, list(tools))


@pytest.mark.promise("XZ-ROOT-TOOLS")
@pytest.mark.parametrize(
    ("given", "tools"),
    [
        (["--dialect", "xzatoma"], [*OWN, *READER, *DELEGATION]),
        (["--dialect", "xzatoma", "--tools", "grep"], ["grep", *DELEGATION]),
        ([], []),
        (["--dialect", "meerkat"], ["agent_spawn", "agent_fork", "agent_status", "agent_cancel", "agent_list"]),
    ],
)
def test_a_chat_has_them_if_it_names_the_dialect(cli: Cli, given: Sequence[str], tools: Sequence[str]) -> None:
    with serving(says("Yes.")) as vendor:
        ended = cli("chat", *flags(vendor, *given), stdin=b"Is it?\n")

    assert (ended.code, offered(vendor.requests[0].body)) == (0, list(tools))


@pytest.mark.promise("XZ-ROOT-TOOLS")
def test_tools_of_a_root_have_its_workspace_and_approvals(cli: Cli, folder: Path) -> None:
    (folder / "notes.txt").write_text("The pool is too small.\n")
    lines = in_turn(
        calls("grep", pattern="pool"),
        calls("file_ops", operation="read", path="/etc/passwd"),
        calls("terminal", command="git init made"),
        says("Done."),
    )
    with serving(lines) as vendor:
        ended = cli("run", *flags(vendor, "--dialect", "xzatoma"), "Look.")

    found, outside, made = (request.body["messages"][-1]["content"] for request in vendor.requests[1:])
    assert ended.code == 1  # the only call that acts was refused
    assert "The pool is too small." in found
    assert outside == (
        "Security policy: cannot read /etc/passwd: it lies outside the workspace and the allowed folders "
        "(workspace_only, allowed_roots, allowed_roots_read_only)"
    )
    assert made.startswith("Security policy: 'terminal': this medium-risk call needs approval ")
    assert not (folder / "made").exists()


DEFINES = calls(
    "subagent", action="define", name="helper", description="Helps.", system_prompt="Help.", tools=["shell", "fetch"]
)
SPAWNS = calls("subagent", action="spawn", agent="helper", task="Look.")


@pytest.mark.parametrize("flags_of_tools", [["--tools", "file_read"], ["--tools", ""]])
def test_tools_are_the_ceiling_of_what_a_model_can_give_to_agents(
    cli: Cli, folder: Path, flags_of_tools: list[str]
) -> None:
    (folder / "retinue.toml").write_text('[agents.reader]\ntools = ["shell"]\n')
    spawns = calls("subagent", action="spawn", agent="reader", task="Look.")
    waits = calls("subagent", action="wait", task_ids=["t_01"])
    script = ChatScript().play(DEFINES, spawns, waits, says("Done.")).play(says("Nothing."), words="Look.")
    with serving(script) as vendor:
        ended = cli("run", *flags(vendor, *flags_of_tools), "Go.")

    assert ended.code == 0
    (child,) = (each.body for each in vendor.requests if each.body["messages"][-1]["content"] == "Look.")
    assert "shell" not in offered(child)
    refused = first_result(vendor)
    assert (refused["error"], refused["message"]) == ("INVALID_TOOL", "Tool not in application registry: 'shell'")


def test_without_the_flag_a_defined_agent_has_what_the_policy_allows(cli: Cli, folder: Path) -> None:
    (folder / "retinue.toml").write_text("[agents.reader]\n")
    script = ChatScript().play(DEFINES, SPAWNS, says("Done.")).play(says("Nothing."), words="Look.")
    with serving(script) as vendor:
        cli("run", *flags(vendor), "Go.")

    assert first_result(vendor) == {"defined": "helper", "description": "Helps."}
