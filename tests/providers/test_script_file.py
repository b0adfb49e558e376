"""Script files as models: lines by agent, task and turn, and errors in the file."""

from pathlib import Path

import pytest

from retinue.core.errors import ProviderError
from retinue.core.messages import AssistantMessage, Message, Reply, ToolCall, UserMessage
from retinue.core.ports import Request
from retinue.core.usage import Usage
from retinue.providers.scripted.file import ScriptFileProvider
from retinue.testing.contracts.provider import DeltaListener


async def asked(
    provider: ScriptFileProvider, file: Path, *, agent: str = "main", task: str = "hi", turn: int = 1
) -> Reply:
    messages: list[Message] = [UserMessage(task), *(AssistantMessage("so far") for _ in range(turn - 1))]
    request = Request(model=str(file), system="", messages=messages, agent=agent, path=agent, turn=turn)
    return await provider.answer(request, DeltaListener().publish)


async def test_lines_are_played_by_agent_task_and_turn(tmp_path: Path) -> None:
    file = tmp_path / "lines.json"
    file.write_text(
        """{
        "main": [{"call": {"name": "search", "arguments": {"query": "pool"}}}, {"say": "The pool."}],
        "main: in short": [{"say": "Pool.", "think": "hm", "usage": {"input": 7, "output": 2}}],
        "*": [{"say": "Both.", "calls": [{"name": "a"}, {"name": "b", "arguments": "not JSON"}], "usage": "none"}]
    }"""
    )
    provider = ScriptFileProvider()

    first, second = await asked(provider, file), await asked(provider, file, turn=2)
    short = await asked(provider, file, task="Why, in short?")
    other = await asked(provider, file, agent="researcher")

    assert first.message == AssistantMessage("", (ToolCall("search", '{"query":"pool"}'),))
    assert second.message == AssistantMessage("The pool.")
    assert (short.message.text, short.message.thinking[0].text, short.usage) == (
        "Pool.",
        "hm",
        Usage(input=7, output=2),
    )
    assert other.message == AssistantMessage("Both.", (ToolCall("a"), ToolCall("b", "not JSON")))
    assert (other.usage, other.stop) == (None, "calls")


async def test_a_list_of_lines_is_for_all_agents(tmp_path: Path) -> None:
    file = tmp_path / "lines.json"
    file.write_text('[{"say": "Hello."}]')
    provider = ScriptFileProvider()

    assert [(await asked(provider, file, agent=agent)).message.text for agent in ("main", "dig")] == [
        "Hello.",
        "Hello.",
    ]


async def test_failures_are_played_the_given_number_of_times(tmp_path: Path) -> None:
    file = tmp_path / "lines.json"
    file.write_text(
        '[{"status": 529, "message": "busy", "times": 2, "then": {"say": "at last"}}, '
        '{"say": "It is", "ending": "cut"}]'
    )
    provider = ScriptFileProvider()
    failures: list[ProviderError] = []
    for turn in (1, 1, 2):
        with pytest.raises(ProviderError) as caught:
            await asked(provider, file, turn=turn)
        failures.append(caught.value)

    assert [(str(each), each.fault, each.status, each.partial) for each in failures] == [
        ("busy", "overloaded", 529, ""),
        ("busy", "overloaded", 529, ""),
        ("the stream ended in the middle of the answer", "cut", None, "It is"),
    ]
    assert (await asked(provider, file)).message.text == "at last"


@pytest.mark.parametrize(
    ("text", "complaint"),
    [
        (None, "the script FILE cannot be read: No such file or directory"),
        ("x", "FILE: the script cannot be read: JSON is malformed: invalid character (byte 0)"),
        (
            '{"main": [{"says": "x"}]}',
            "FILE: the script cannot be read: Object contains unknown field `says` - at `$[...][0]`",
        ),
        ('{"main": []}', "scripted model: agent 'main' was asked for line 1; its script has 0 lines"),
        ('{"dig": []}', "scripted model: agent 'main' has no script; agents with one: dig"),
    ],
)
async def test_an_invalid_script_file_is_an_error_with_its_reason(
    text: str | None, complaint: str, tmp_path: Path
) -> None:
    file = tmp_path / "lines.json"
    if text is not None:
        file.write_text(text)
    with pytest.raises(ProviderError) as caught:
        await asked(ScriptFileProvider(), file)

    assert (str(caught.value).replace(str(file), "FILE"), caught.value.fault) == (complaint, "bad_request")
