"""Named system prompts: `retinue run --system codesearch`."""

from pathlib import Path

import pytest

from retinue.__main__ import main
from retinue.dialects.buzzllm.settings import PROMPTS
from retinue.providers.scripted import says
from tests.dialects.buzzllm.harness import serving

TOOLS = {
    "websearch": ["search_web", "scrape_webpage"],
    "codesearch": ["bash_find", "bash_ripgrep", "bash_read"],
    "pythonexec": ["python_execute"],
    "hackhub": [],
    "generate": [],
    "helpful": [],
    "replace": [],
}


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("RETINUE_HOME", str(tmp_path / "home"))
    monkeypatch.chdir(tmp_path)
    return tmp_path


def offered(system: str, *flags: str) -> tuple[str, list[str]]:
    """The system text and the tools that a model hears of."""
    with serving(says("Hi.")) as vendor:
        where = ("--provider", "openai-chat", "--base-url", vendor.base_url, "--model", "fake-1", "--quiet")
        assert main(["run", *where, "--system", system, *flags, "Go."]) == 0
    body = vendor.requests[0].body
    text = body["messages"][0]["content"] if body["messages"][0]["role"] == "system" else ""
    tools = [tool["function"]["name"] for tool in body.get("tools", [])]
    return text, [name for name in tools if name not in ("call_subagent", "artifact_read")]


@pytest.mark.promise("BZ-PROMPTS", "BZ-PROMPT-TOOLS")
@pytest.mark.parametrize("name", TOOLS)
def test_a_prompt_with_a_name_has_a_text_and_brings_its_tools(name: str) -> None:
    text, tools = offered(name, "--dialect", "buzzllm")

    assert (text, tools) == (PROMPTS[name].text, TOOLS[name])
    assert len(text) > len(name)


@pytest.mark.promise("BZ-PROMPT-TOOLS")
def test_its_tools_are_added_to_those_of_the_flags_and_of_the_agent(folder: Path) -> None:
    (folder / "retinue.toml").write_text('[agents.dig]\ndescription = "Digs."\ntools = ["file_read"]\n')

    assert offered("codesearch", "--dialect", "none", "--tools", "file_read,bash_read")[1] == [
        *("file_read", "bash_read", "bash_find", "bash_ripgrep")
    ]
    assert offered("pythonexec", "--dialect", "none", "--agent", "dig")[1] == ["file_read", "python_execute"]


@pytest.mark.promise("BZ-PROMPTS")
def test_any_other_text_is_a_prompt_itself_and_brings_no_tools() -> None:
    assert offered("You dig.", "--dialect", "none") == ("You dig.", [])
    assert offered("codesearch!", "--dialect", "none") == ("codesearch!", [])
