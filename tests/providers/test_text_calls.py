"""Tool calls that a model wrote as text: recognised in the forms of local models, never where JSON is the answer."""

from __future__ import annotations

import json
import time
from collections.abc import Sequence
from dataclasses import replace

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from retinue.core.agent import Output, ToolSpec
from retinue.core.messages import AssistantMessage, Reply, ToolCall
from retinue.core.ports import Request
from retinue.providers.catalog import provider_config, recognises_text_calls
from retinue.providers.text_calls import MAX_TEXT, TextCalls, find_calls, with_text_calls

SHELL_PARAMETERS = '{"properties":{"command":{},"mode":{"enum":["fast","slow"]}},"required":["command"]}'
AGENT_PARAMETERS = '{"properties":{"action":{"enum":["spawn","status"]},"task":{}},"required":["action"]}'
TOOLS = [
    ToolSpec("look"),
    ToolSpec("shell", parameters=SHELL_PARAMETERS),
    ToolSpec("agent", parameters=AGENT_PARAMETERS),
]
LOOK = ToolCall("look", '{"at":"logs"}')
SHELL = ToolCall("shell", '{"command":"ls"}')

FORMS = {
    "hermes": '<tool_call>\n{"name": "look", "arguments": {"at": "logs"}}\n</tool_call>',
    "hermes without an end": '<tool_call>\n{"name": "look", "arguments": {"at": "logs"}}',
    "qwen coder": "<tool_call>\n<function=look>\n<parameter=at>\nlogs\n</parameter>\n</function>\n</tool_call>",
    "qwen tools tag": '<tools>\n{"name": "look", "arguments": {"at": "logs"}}\n</tools>',
    "llama tag": '<function=look>{"at": "logs"}</function>',
    "llama mark": '<|python_tag|>{"name": "look", "parameters": {"at": "logs"}}<|eom_id|>',
    "llama bare": '{"name": "look", "parameters": {"at": "logs"}}',
    "llama with type": '{"type": "function", "name": "look", "parameters": {"at": "logs"}}',
    "mistral": '[TOOL_CALLS] [{"name": "look", "arguments": {"at": "logs"}}]',
    "mistral with a name": '[TOOL_CALLS]look[ARGS]{"at": "logs"}</s>',
    "fenced": '```json\n{"name": "look", "arguments": {"at": "logs"}}\n```',
    "fenced without a language": '```\n{"name": "look", "arguments": {"at": "logs"}}\n```',
    "fenced without an end": '```json\n{"name": "look", "arguments": {"at": "logs"}}',
    "doubled braces": '{{"name": "look", "arguments": {"at": "logs"}}}',
    "doubled braces, one too many": '{{"name": "look", "arguments": {"at": "logs"}}}}',
    "fenced with doubled braces": '```json\n{{"name": "look", "arguments": {"at": "logs"}}}\n```',
    "arguments as text": '{"name": "look", "arguments": "{\\"at\\": \\"logs\\"}"}',
    "openai": '{"type": "function", "function": {"name": "look", "arguments": "{\\"at\\": \\"logs\\"}"}}',
    "tool and input": '{"tool": "look", "input": {"at": "logs"}}',
}


@pytest.mark.parametrize("text", FORMS.values(), ids=FORMS)
def test_each_form_of_a_written_call_is_recognised(text: str) -> None:
    assert find_calls(text, TOOLS) == TextCalls((LOOK,))


@pytest.mark.parametrize("text", FORMS.values(), ids=FORMS)
def test_words_before_a_written_call_are_kept_as_text(text: str) -> None:
    assert find_calls(f"Let me look.\n\n{text}", TOOLS) == TextCalls((LOOK,), "Let me look.")


def test_several_written_calls_keep_their_order() -> None:
    tagged = (
        '<tool_call>{"name": "look", "arguments": {"at": "logs"}}</tool_call>\n'
        '<tool_call>{"name": "shell", "arguments": {"command": "ls"}}</tool_call>'
    )
    listed = '[{"name": "look", "arguments": {"at": "logs"}}, {"name": "shell", "arguments": {"command": "ls"}}]'

    assert find_calls(tagged, TOOLS).calls == (LOOK, SHELL)
    assert find_calls(listed, TOOLS).calls == (LOOK, SHELL)


def test_parameters_in_tags_keep_their_types() -> None:
    parameters = "".join(f"<parameter={name}>{value}</parameter>" for name, value in (("n", 3), ("id", "007")))
    text = f"<function=look>{parameters}<parameter=on>true</parameter></function>"

    assert find_calls(text, TOOLS).calls == (ToolCall("look", '{"n":3,"id":"007","on":true}'),)


def test_the_parameters_of_one_tool_without_its_name_are_a_call_of_it() -> None:
    assert find_calls('{"command": "ls"}', TOOLS).calls == (SHELL,)
    assert find_calls('```json\n{"command": "ls", "mode": "fast"}\n```', TOOLS).calls == (
        ToolCall("shell", '{"command":"ls","mode":"fast"}'),
    )
    assert find_calls('{"command": "ls", "exit": 0, "output": ""}', TOOLS) == TextCalls()


def test_the_name_of_a_choice_stands_for_the_tool_that_has_it() -> None:
    written = '{"name": "spawn", "arguments": {"task": "dig"}}'

    assert find_calls(written, TOOLS).calls == (ToolCall("agent", '{"task":"dig","action":"spawn"}'),)


def test_optional_parameters_that_are_empty_are_left_out_of_a_written_call() -> None:
    schema = (
        '{"type": "object", "properties": {"text": {}, "at": {}, "parts": {}, "more": {}, "lines": {}},'
        ' "required": ["text"]}'
    )
    written = '{"name": "put", "arguments": {"text": "", "at": "", "parts": [], "more": null, "lines": 0}}'

    assert find_calls(written, [ToolSpec("put", parameters=schema)]).calls == (
        ToolCall("put", '{"text":"","lines":0}'),
    )


def test_optional_zeros_that_a_schema_forbids_are_left_out_of_a_written_call() -> None:
    schema = (
        '{"type": "object", "properties": {"task": {}, "cost": {"exclusiveMinimum": 0}, "turns": {"minimum": 1},'
        ' "wait": {"minimum": 0}, "now": {"minimum": 1}, "must": {"minimum": 1}}, "required": ["task", "must"]}'
    )
    written = (
        '{"name": "run", "arguments": {"task": "Dig.", "cost": 0.0, "turns": 0, "wait": 0, "now": false, "must": 0}}'
    )

    assert find_calls(written, [ToolSpec("run", parameters=schema)]).calls == (
        ToolCall("run", '{"task":"Dig.","wait":0,"now":false,"must":0}'),
    )


@pytest.mark.parametrize(
    "text",
    [
        "",
        "42",
        "The set {1, 2} has two elements.",
        '{"name": "Ada", "age": 36}',
        '```json\n{"name": "Ada", "role": "shell"}\n```',
        '```python\nprint({"name": "look", "arguments": {}})\n```',
        'Call it with {"name": "look", "arguments": {"at": "logs"}} and read the result.',
        "Use look(at='logs').",
        '{"answer": {"name": "look"}}',
    ],
)
def test_an_answer_is_not_taken_for_a_call(text: str) -> None:
    assert find_calls(text, TOOLS) == TextCalls()


@pytest.mark.parametrize(
    ("text", "error"),
    [
        ('{"name": "search", "arguments": {"q": "x"}}', "there is no tool named 'search'"),
        ('<tool_call>{"name": "search", "arguments": {}}</tool_call>', "there is no tool named 'search'"),
        (
            '<tool_call>{"name": "look", "arguments": {"at": </tool_call>',
            "what follows the mark of a tool call is not a JSON object with a name and arguments",
        ),
        ('{"name": "look", "arguments": {"at": "logs"', "its JSON cannot be read"),
        ('```json\n{"name": "look", "arguments": {at: logs}}\n```', "its JSON cannot be read"),
    ],
)
def test_a_failed_attempt_at_a_call_is_named(text: str, error: str) -> None:
    assert find_calls(text, TOOLS) == TextCalls(error=error)


def reply(text: str, *calls: ToolCall) -> Reply:
    return Reply(AssistantMessage(text, calls))


def request(*, tools: Sequence[ToolSpec] = TOOLS, output: Output | None = None) -> Request:
    return Request(model="m", system="", messages=[], tools=tuple(tools), output=output)


def test_a_reply_with_a_written_call_becomes_a_reply_with_a_call() -> None:
    found = with_text_calls(reply(FORMS["hermes"]), request())

    assert found == Reply(AssistantMessage("", (LOOK,)), stop="calls", calls_in_text=True)


def test_replies_that_must_not_call_or_have_real_calls_stay_as_they_are() -> None:
    written, real = reply(FORMS["hermes"]), reply(FORMS["hermes"], SHELL)

    assert with_text_calls(written, replace(request(tools=()), withheld_tools=tuple(TOOLS))) == written
    assert with_text_calls(written, replace(request(tools=()), purpose="summary")) == written
    assert with_text_calls(real, request()) == real


def test_a_written_call_where_there_are_no_tools_is_a_failed_attempt() -> None:
    found = with_text_calls(reply(FORMS["llama bare"]), request(tools=()))

    assert (found.message.calls, found.call_error) == ((), "there is no tool named 'look'")
    assert with_text_calls(reply("The set {1, 2}."), request(tools=())) == reply("The set {1, 2}.")


def test_where_the_answer_is_json_only_marked_calls_are_recognised() -> None:
    demanded = request(output=Output())

    assert with_text_calls(reply(FORMS["llama bare"]), demanded) == reply(FORMS["llama bare"])
    assert with_text_calls(reply(FORMS["fenced"]), demanded) == reply(FORMS["fenced"])
    assert with_text_calls(reply(FORMS["hermes"]), demanded).message.calls == (LOOK,)


def test_written_calls_are_recognised_on_local_servers_and_by_setting_elsewhere() -> None:
    local = [name for name in ("ollama", "lmstudio", "llamacpp", "vllm", "openai-chat", "anthropic", "gemini")
             if recognises_text_calls(provider_config(name))]  # fmt: skip

    assert local == ["ollama", "lmstudio", "llamacpp", "vllm"]
    assert recognises_text_calls(provider_config("openai-chat", base_url="https://h.example/v1", calls_in_text=True))
    assert not recognises_text_calls(provider_config("ollama", calls_in_text=False))


@pytest.mark.parametrize(
    ("wire", "address", "expected"),
    [
        ("openai-chat", "http://127.0.0.1:9000/v1", True),
        ("openai-chat", "http://localhost:9000/v1", True),
        ("openai-chat", "http://[::1]:9000/v1", True),
        ("openai-chat", "http://192.168.1.7:9000/v1", False),
        ("openai-chat", "https://127.0.0.1.example.org/v1", False),
        ("anthropic", "http://127.0.0.1:9000", False),
        ("openai-responses", "http://127.0.0.1:9000/v1", False),
        ("ollama", "http://192.168.1.7:11434/v1", True),
    ],
)
def test_written_calls_are_recognised_at_addresses_of_this_machine(wire: str, address: str, expected: bool) -> None:
    config = provider_config(wire, base_url=address)

    assert recognises_text_calls(config) == expected
    assert not recognises_text_calls(msgspec.structs.replace(config, calls_in_text=False))
    assert not recognises_text_calls(msgspec.structs.replace(config, full_url=True))


@given(st.text(alphabet='{}[]<>"`:,\\ \nname look arguments tool_call function= 1', max_size=200))
def test_any_text_is_examined_without_an_error(text: str) -> None:
    found = find_calls(text, TOOLS)

    assert all(
        isinstance(json.loads(call.arguments), dict) and call.name in {tool.name for tool in TOOLS}
        for call in found.calls
    )


@pytest.mark.parametrize(
    "piece", ["{", "[", "<tool_call>", "```json\n", "<function=look>", '{"name":"look","arguments":']
)
def test_long_hostile_text_has_no_calls(piece: str) -> None:
    """With work that grows faster than the text, this would take minutes."""
    assert find_calls(piece * (MAX_TEXT // len(piece)), TOOLS).calls == ()


def assert_is_read_once(text: str) -> None:
    """It takes a millisecond. One attempt may meet a machine that is busy, or the garbage collector; not all do."""
    seconds: list[float] = []
    while len(seconds) < 5 and min(seconds, default=2.0) >= 2.0:
        before = time.thread_time()
        assert find_calls(text, TOOLS).calls == ()
        seconds.append(time.thread_time() - before)
    assert min(seconds) < 2.0


@pytest.mark.parametrize("opening", ["<tools>", "<tool_call>", "<function=look>", "<function=look><parameter=at>"])
def test_a_long_run_of_blanks_in_a_written_call_is_read_once(opening: str) -> None:
    """It was read again from each of its characters: 99,000 blanks stopped the process for a minute."""
    text = f"{opening}x{' ' * (MAX_TEXT - 100)}y"

    assert_is_read_once(text)


def test_parameters_without_an_end_are_read_once() -> None:
    text = "<function=look>" + "<parameter=at>" * ((MAX_TEXT - 100) // 14)

    assert_is_read_once(text)


CALL = '{"name":"look","arguments":{"at":"logs"}}'


@pytest.mark.parametrize(
    "text",
    [
        f"The page says:\n> <tool_call>{CALL}</tool_call>\nI will not do that.",
        f"The page says:\n  > <tool_call>{CALL}",
        f"The page has `<tool_call>{CALL}</tool_call>`, which I ignore.",
        "It says `<function=look><parameter=at>logs</parameter></function>` there.",
        "> <function=look>\n> <parameter=at>logs</parameter>\n> </function>\nThat is all.",
    ],
)
def test_a_call_that_is_quoted_is_an_answer(text: str) -> None:
    """A page or a child that is quoted would otherwise choose what the model does next."""
    assert find_calls(text, TOOLS) == TextCalls()


def test_a_call_after_a_quoted_one_is_made_and_its_arguments_may_have_quotes() -> None:
    quoted = "> <tool_call>{}</tool_call>\nInstead, use `look`:\n"
    found = find_calls(f"{quoted}<function=look><parameter=at>> a `b\n> c</parameter></function>", TOOLS)

    assert [json.loads(call.arguments) for call in found.calls] == [{"at": "> a `b\n> c"}]
