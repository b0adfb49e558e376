"""`retinue chat` in a pipe: requests to the model, output of commands, and exit codes."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from retinue.app.chat.delegation import texts
from retinue.app.chat.open_chats import OpenChats
from retinue.app.open import open as open_retinue
from retinue.cli.chat.commands import COMMANDS
from retinue.core.errors import ProviderError
from retinue.providers.scripted import Line, Script, ScriptedProvider, calls, fails, says
from retinue.testing.fake_server import ReceivedRequest
from tests.cli.chat.conftest import Chat, Opens
from tests.cli.conftest import Cli
from tests.cli.stage import Ended, serving

pytestmark = pytest.mark.real_time

ON = "Subagent delegation enabled for subsequent requests"
OFF = "Subagent delegation disabled"


def test_every_line_is_one_input_of_one_conversation(chat: Opens) -> None:
    talk = chat(says("Hello."), says("Four."))

    ended = talk("Hi!", "", "Two and two?")

    assert (ended.code, ended.stdout) == (0, "Hello.\nFour.\n")
    assert talk.sent == [
        [("user", "Hi!")],
        [("user", "Hi!"), ("assistant", "Hello."), ("user", "Two and two?")],
    ]
    assert "> " not in ended.stderr


def test_a_conversation_is_one_run_that_completes(chat: Opens, cli: Cli) -> None:
    chat(says("Hello."), says("Four."))("Hi!", "Two and two?")

    (row,) = cli("runs", "--json").json
    assert (row["label"], row["state"], row["outcome"], row["turns"]) == ("chat", "ended", "completed", 2)


@pytest.mark.parametrize(
    ("lines", "code"), [(["Hi!", "fine", "broken"], 1), (["broken", "fine"], 0), ([], 0)], ids=["last", "first", "none"]
)
def test_the_exit_code_is_that_of_the_last_answer(cli: Cli, lines: list[str], code: int) -> None:
    def answers(heard: ReceivedRequest) -> Line:
        last = heard.body["messages"][-1]["content"]
        return fails(ProviderError("no", fault="bad_request", status=400)) if "broken" in last else says("Good.")

    with serving(answers) as vendor:
        ended = Chat(cli, vendor)(*lines)

    assert ended.code == code
    assert ended.stdout == "Good.\n" * sum("broken" not in line for line in lines)


def test_lines_can_be_continued_and_put_into_blocks(chat: Opens) -> None:
    talk = chat(says("1"), says("2"), says("3"))

    talk("first \\", "second", '"""', "/status", "", "exit", '"""', "C:\\\\")

    assert [messages[-1][1] for messages in talk.sent] == ["first \nsecond", "/status\n\nexit", "C:\\\\"]


def test_a_block_that_is_never_closed_is_not_sent(chat: Opens) -> None:
    talk = chat()

    ended = talk('"""', "half")

    assert (ended.code, ended.stdout, talk.sent) == (1, "", [])
    assert 'before the line """' in ended.stderr


def test_a_line_with_two_slashes_is_sent_with_one(chat: Opens) -> None:
    talk = chat(says("It maps names."))

    talk("//etc/hosts is what?")

    assert talk.sent == [[("user", "/etc/hosts is what?")]]


def test_a_line_that_is_not_utf8_is_not_sent(chat: Opens, cli: Cli) -> None:
    talk = chat(says("Hello."))

    ended = cli("chat", "--base-url", talk.vendor.base_url, "--model", "m", stdin=b"\xff\xfe\nHi!\n")

    assert (ended.code, ended.stdout) == (0, "Hello.\n")
    assert "not UTF-8" in ended.stderr


@pytest.mark.promise("XZ-CHAT-SWITCH")
@pytest.mark.parametrize(
    ("line", "error"),
    [
        ("/statsu", "there is no command /statsu; did you mean /status?"),
        ("/etc/hosts", "there is no command /etc/hosts (/help lists them, // sends a slash)"),
        ("/cost now", "/cost takes no argument"),
        ("/subagents maybe", "/subagents does not take 'maybe'"),
    ],
)
def test_an_unknown_command_is_an_error_without_a_model_call(chat: Opens, line: str, error: str) -> None:
    talk = chat()

    ended = talk(line)

    assert (ended.code, ended.stdout, talk.sent) == (1, "", [])
    assert f"error: {error}" in ended.stderr


def test_help_has_a_line_for_every_command(chat: Opens) -> None:
    result = chat()("/help").stdout.splitlines()

    commands = [line.split()[0] for line in result if line.startswith("/")]
    assert commands == [f"/{name}" for name in COMMANDS]


@pytest.mark.parametrize("word", ["/quit", "exit", "QUIT", "/Quit", "/exit"])
def test_exit_and_quit_leave_the_chat(chat: Opens, word: str) -> None:
    talk = chat(says("Hello."))

    ended = talk("Hi!", word, "Still there?")

    assert (ended.code, ended.stdout, len(talk.sent)) == (0, "Hello.\n", 1)


@pytest.mark.promise("XZ-CHAT-STATUS")
def test_status_reports_model_session_usage_and_delegation(chat: Opens, cli: Cli) -> None:
    talk = chat(says("Hello."))

    result = talk("Hi!", "/status", flags=("--session", "audit")).stdout
    (row,) = cli("runs", "--json").json

    assert result.splitlines()[1:] == [
        "Model:            openai-chat:m",
        "Session:          audit",
        f"Run:              {row['run_id']}",
        "Turns:            1",
        "Children:         0",
        f"Tokens:           {row['usage']['input']} in, {row['usage']['output']} out",
        "Cost:             unknown",
        "Subagents:        disabled",
    ]


@pytest.mark.promise("XZ-CHAT-STATUS")
def test_status_before_the_first_input(chat: Opens) -> None:
    result = chat()("/subagents on", "/status", "/cost", "/agents")

    assert "Run:              none yet\nTurns:            0\n" in result.stdout
    assert "Subagents:        ENABLED\n" in result.stdout
    assert "the settings have no agents\nno children were started in this chat\n" in result.stdout
    assert "no input was sent yet" in result.stderr


def test_delegation_is_off_by_default(chat: Opens) -> None:
    talk = chat(says("Hello."))

    ended = talk("Hi!", "/tools")

    assert talk.offered == [[]]
    assert "the model is offered no tools" in ended.stdout


@pytest.mark.promise("XZ-CHAT-SWITCH")
def test_subagents_switches_the_offered_tools_within_a_conversation(chat: Opens) -> None:
    talk = chat(*(says(str(number)) for number in range(5)))

    ended = talk("a", "/subagents on", "b", "/subagents off", "c", "/subagents", "d", "/subagents", "e")

    assert ended.stdout.splitlines() == ["0", ON, "1", OFF, "2", ON, "3", OFF, "4"]
    assert ["subagent" in tools for tools in talk.offered] == [False, True, False, True, False]
    assert [text for _, text in talk.sent[-1]] == ["a", "0", "b", "1", "c", "2", "d", "3", "e"]


@pytest.mark.promise("XZ-CHAT-SWITCH")
@pytest.mark.parametrize(("said", "answer"), [("enable", ON), ("disable", OFF), ("ON", ON)])
def test_subagents_accepts_enable_and_disable(chat: Opens, said: str, answer: str) -> None:
    assert chat()(f"/subagents {said}").stdout == f"{answer}\n"


@pytest.mark.promise("XZ-CHAT-WORDS")
@pytest.mark.parametrize("words", texts().words)
def test_a_prompt_that_asks_for_agents_enables_delegation(chat: Opens, folder: Path, words: str) -> None:
    (folder / "retinue.toml").write_text("[agent.subagent]\nmax_executions = 9\n")
    talk = chat(says("Done."), says("Again."))

    ended = talk(f"Please {words.upper()} for this.", "And this?")

    assert ON in ended.stderr
    assert ["subagent" in tools for tools in talk.offered] == [True, True]


@pytest.mark.promise("XZ-CHAT-WORDS")
def test_phrases_that_enable_delegation() -> None:
    assert texts().words == (
        "subagent", "delegate", "spawn agent", "parallel task", "parallel agent", "agent delegation", "use agent",
    )  # fmt: skip


def test_a_prompt_that_asks_for_agents_enables_a_named_dialect_again(chat: Opens) -> None:
    talk = chat(says("Done."), says("Again."))

    talk("/subagents off", "Hi!", "Use agents for this.", flags=("--dialect", "xzatoma"))

    assert ["subagent" in tools for tools in talk.offered] == [False, True]


@pytest.mark.parametrize("words", texts().words)
def test_no_word_of_a_prompt_enables_delegation_that_is_not_configured(chat: Opens, words: str) -> None:
    talk = chat(says("Done."), says("On."))

    ended = talk(f"How do I {words} in Kubernetes?", "/subagents on", "And now?")

    assert ON not in ended.stderr
    assert ["subagent" in tools for tools in talk.offered] == [False, True]


def test_similar_phrases_do_not_enable_delegation(chat: Opens, folder: Path) -> None:
    (folder / "retinue.toml").write_text("[agent.subagent]\nmax_executions = 9\n")
    talk = chat(says("Done."))

    ended = talk("Which user agent is it?")

    assert (ON in ended.stderr, talk.offered) == (False, [[]])


@pytest.mark.promise("XZ-CHAT-ENABLED")
def test_the_settings_can_enable_delegation(chat: Opens, folder: Path) -> None:
    (folder / "retinue.toml").write_text("[agent.subagent]\nchat_enabled = true\n")
    talk = chat(says("Done."))

    talk("Hi!")

    assert "subagent" in talk.offered[0]


def test_a_named_dialect_is_enabled_from_the_start(chat: Opens) -> None:
    talk = chat(says("Done."), says("Done."))

    ended = talk("Hi!", "/status", "/subagents off", "And now?", flags=("--dialect", "meerkat"))

    assert ("agent_spawn" in talk.offered[0], talk.offered[1]) == (True, [])
    assert "Subagents:        ENABLED\n" in ended.stdout


def test_with_dialect_none_only_the_command_enables_delegation(chat: Opens) -> None:
    talk = chat(says("No."), says("Yes."))

    talk("Delegate it.", "/subagents on", "Delegate it.", flags=("--dialect", "none"))

    assert ["subagent" in tools for tools in talk.offered] == [False, True]


def test_children_are_reported_and_counted(chat: Opens, cli: Cli) -> None:
    delegation = calls("subagent", label="dig", task_prompt="DIG in the logs")
    talk = chat(delegation, says("It was the pool."), DIG=says("dug"))

    ended = talk("Why?", "/agents", "/cost", "/status", flags=("--dialect", "xzatoma"))
    rows = cli("runs", "--all", "--json").json

    assert (ended.code, ended.stdout.splitlines()[0]) == (0, "It was the pool.")
    assert "main [dig]: started, run " in ended.stderr
    assert "\n1 child run, 2 turns, " in ended.stderr
    child = next(row for row in rows if row["parent_id"])
    assert re.search(rf"main \[dig\] +{child['run_id']} +completed +2 ", ended.stdout)
    spent = [sum(row["usage"][kind] for row in rows) for kind in ("input", "output")]
    assert re.search(rf"^total +4 +{spent[0]} +\d+ +{spent[1]} +\?$", ended.stdout, re.M)
    assert "Children:         1\n" in ended.stdout


@pytest.mark.promise("XZ-QUOTA-CHAT")
def test_switching_delegation_does_not_give_a_new_quota(chat: Opens, folder: Path) -> None:
    (folder / "retinue.toml").write_text("[agent.subagent]\nmax_executions = 1\nchat_enabled = true\n")
    talk = chat(
        calls("subagent", label="dig", task_prompt="look below"),
        says("Found."),
        says("Alone."),
        calls("subagent", label="again", task_prompt="look again"),
        says("No."),
        **{"look below": says("It is the pool.")},
    )

    talk("Dig.", "/subagents off", "And now?", "/subagents on", "Dig again.")

    refusal = talk.sent[-1][-1]
    assert refusal[0] == "tool"
    assert "Resource quota exceeded: Execution limit reached: 1/1" in refusal[1]


def test_configured_agents_are_listed_and_can_be_chatted_with(chat: Opens, folder: Path) -> None:
    (folder / "retinue.toml").write_text(
        '[agents.scribe]\ndescription = "Writes."\nsystem_prompt = "You write."\ntools = ["file_read"]\nmax_turns = 3\n'
    )
    talk = chat(says("Dear diary."), says("The end."))

    ended = talk("/agents", "Begin.", "End.", flags=("--agent", "scribe", "--dialect", "none"))

    assert ended.stdout.splitlines()[:2] == ["AGENT   WHAT IT DOES", "scribe  Writes."]
    assert [messages[0] for messages in talk.sent] == [("system", "You write.")] * 2
    assert ["file_read" in tools for tools in talk.offered] == [True, True]
    assert [text for _, text in talk.sent[1]] == ["You write.", "Begin.", "Dear diary.", "End."]


def test_tools_lists_the_offered_tools(chat: Opens) -> None:
    result = chat()("/tools", flags=("--tools", "file_read,grep", "--dialect", "xzatoma")).stdout.splitlines()

    assert [line.split()[0] for line in result][:4] == ["TOOL", "file_read", "grep", "subagent"]


def test_clear_begins_a_new_conversation(chat: Opens) -> None:
    talk = chat(says("Hello."))

    ended = talk("Hi!", "/clear", "/cost", "Hi again!")

    assert talk.sent == [[("user", "Hi!")], [("user", "Hi again!")]]
    assert ended.stdout == "Hello.\na new conversation begins\nHello.\n"


def test_a_session_continues_its_conversation(chat: Opens) -> None:
    talk = chat(says("Hello."), says("You said hi."), says("That was all."))

    talk("Hi!", flags=("--session", "audit"))
    again = talk("What did I say?", flags=("--session", "audit"))
    third = talk("And?", "/cost", flags=("--session", "audit", "--dialect", "xzatoma"))

    assert again.stdout == "You said hi.\n"
    assert [text for _, text in talk.sent[1]] == ["Hi!", "Hello.", "What did I say?"]
    assert "continuing session audit: 2 messages, last run " in again.stderr
    assert "continuing session audit: 4 messages, last run " in third.stderr
    assert len(re.findall(r"^main \[chat\] ", third.stdout, re.M)) == 3


def test_a_run_that_is_not_a_chat_is_not_continued(chat: Opens, cli: Cli) -> None:
    talk = chat(says("Hello."))
    cli("run", "--base-url", talk.vendor.base_url, "--model", "m", "--session", "audit", "Do it.")

    ended = talk("Hi!", flags=("--session", "audit"))

    assert "going on" not in ended.stderr
    assert talk.sent[-1] == [("user", "Hi!")]


def test_limits_hold_for_each_answer(chat: Opens, cli: Cli) -> None:
    listing = calls("task_list")
    talk = chat(listing, says("One."), listing, listing, listing)

    flags = ("--tools", "task_list", "--max-turns", "2")
    ended = talk("First?", "Second?", "/status", flags=flags)

    assert ended.stdout.splitlines()[0] == "One."
    assert "exhausted: max_turns 2 reached" in ended.stderr
    assert "Turns:            4\n" in ended.stdout


def test_a_limit_on_tokens_leaves_the_conversation_one_run(chat: Opens, cli: Cli) -> None:
    talk = chat(says("One."), says("Two."))

    ended = talk("First?", "Second?", flags=("--max-tokens", "5000"))
    rows = cli("runs", "--json").json

    assert ended.stdout == "One.\nTwo.\n"
    assert [text for _, text in talk.sent[1]] == ["First?", "One.", "Second?"]
    assert [(row["label"], row["outcome"], row["turns"]) for row in rows] == [("chat", "completed", 2)]


@pytest.mark.parametrize("flags", [(), ("--quiet",)], ids=["plain", "quiet"])
def test_an_attempt_that_broke_off_is_not_printed(chat: Opens, flags: tuple[str, ...]) -> None:
    talk = chat(
        fails(ProviderError("cut", fault="cut", partial="It was "), times=1, then=says("The pool.")), says("Yes.")
    )

    assert talk("Why?", "Sure?", flags=flags).stdout == "The pool.\nYes.\n"
    assert talk.sent[-1] == [("user", "Why?"), ("assistant", "The pool."), ("user", "Sure?")]


def test_an_answer_that_failed_is_part_of_the_conversation(cli: Cli) -> None:
    def answers(heard: ReceivedRequest) -> Line:
        if heard.body["messages"][-1]["content"] == "Why?":
            return fails(ProviderError("no", fault="internal", partial="It was "))
        return says("The pool.")

    with serving(answers) as vendor:
        talk = Chat(cli, vendor)
        ended = talk("Why?", "Go on.")

    assert (ended.code, ended.stdout) == (0, "It was \nThe pool.\n")
    assert talk.sent[-1] == [("user", "Why?"), ("assistant", "It was "), ("user", "Go on.")]


@pytest.mark.parametrize(
    ("flags", "error"),
    [
        (("--agent", "unknown"), "unknown"),
        (("--dialect", "klingon"), "klingon"),
        (("--tools", "no_such_tool"), "no_such_tool"),
        (("--dialect", "none", "--dialect", "spec"), "exclude each other"),
        (("--approvals", "ask"), "needs a terminal"),
        (("--max-cost", "nan"), "nan"),
    ],
)
def test_wrong_flags_are_bad_usage(chat: Opens, flags: tuple[str, ...], error: str) -> None:
    ended = chat()("Hi!", flags=flags)

    assert (ended.code, ended.stdout) == (2, "")
    assert error in ended.stderr


def test_quiet_prints_the_answer_alone(chat: Opens) -> None:
    ended = chat(says("Hello."))("Hi!", flags=("--quiet",))

    assert ended == Ended(0, "Hello.\n", "")


async def test_an_ended_or_crashed_chat_does_not_count_as_open(tmp_path: Path) -> None:
    async with open_retinue(provider=ScriptedProvider(Script()), home=tmp_path, session="audit") as first:
        there = OpenChats(first)
        async with open_retinue(provider=ScriptedProvider(Script()), home=tmp_path, session="audit") as second:
            here = OpenChats(second)
            alone = await there.register()
            shared = await here.register()
            new = await there.has_new(), await there.has_new()
            await here.unregister()
            again = await there.register()
            await here.register()  # not unregistered, as in a crash
        crashed = await there.has_new()

    assert (alone, shared, again, crashed) == (False, True, False, False)
    assert new == (True, False)
