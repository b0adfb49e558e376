"""What `run` and `chat` offer for delegation where neither a flag nor the settings name a dialect."""

from __future__ import annotations

from pathlib import Path

import pytest

from retinue.dialects import registry
from retinue.providers.scripted import Line, calls, says
from retinue.testing.fake_chat import count_replies
from retinue.testing.fake_server import ReceivedRequest
from tests.cli.conftest import Cli
from tests.cli.stage import serving

SPEC = set(registry.entry("spec").tool_names)
AGENT = '[agents.scribe]\ndescription = "Writes"\n'

SETTINGS = {
    "no settings": ("", False),
    "agents": (AGENT, True),
    "agents that are off": (AGENT + "enabled = false\n", False),
    "other settings": ("[tools]\nmodules = []\n", False),
}


@pytest.mark.parametrize("command", ["run", "chat"])
@pytest.mark.parametrize("case", SETTINGS)
def test_delegation_is_offered_if_agents_are_configured_and_only_then(
    cli: Cli, folder: Path, command: str, case: str
) -> None:
    settings, is_offered = SETTINGS[case]
    (folder / "retinue.toml").write_text(settings)
    with serving(says("Done.")) as vendor:
        flags = (command, "--base-url", vendor.base_url, "--model", "m")
        ended = cli(*flags, "Hello.") if command == "run" else cli(*flags, stdin=b"Hello.\n")
    (heard,) = vendor.requests

    assert (ended.code, ended.stdout) == (0, "Done.\n")
    assert {tool["function"]["name"] for tool in heard.body.get("tools", ())} & SPEC == (SPEC if is_offered else set())


@pytest.mark.promise("MK-SETTINGS")
def test_a_child_of_meerkat_uses_the_custom_server_and_the_model_of_its_caller(cli: Cli, folder: Path) -> None:
    """Without settings its models are those of three vendors, which a server of one's own does not have."""

    def play(request: ReceivedRequest) -> Line:
        if "Go." not in str(request.body["messages"]):
            return says("It is the pool.")
        started = count_replies(request) > 0
        return says("Done.") if started else calls("agent_spawn", prompt="dig")

    with serving(play) as vendor:
        flags = ("--base-url", vendor.base_url, "--model", "tiny-1", "--dialect", "meerkat")
        ended = cli("run", *flags, "Go.")

    children = [heard for heard in vendor.requests if "Go." not in str(heard.body["messages"])]
    assert (ended.code, ended.stdout) == (0, "Done.\n")
    assert [heard.body["model"] for heard in children] == ["tiny-1"]
