"""`retinue run` against a real HTTP server: answers, flags, settings, stdout and stderr."""

from __future__ import annotations

import asyncio
import os
import re
import sys
from pathlib import Path

import pytest

from retinue.core.usage import Usage
from retinue.providers.scripted import calls, says
from retinue.testing.fake_chat import ChatScript, FakeChat
from retinue.testing.fake_server import FakeResponse
from tests.cli.conftest import Cli
from tests.cli.stage import Ended, retinue, serving


def asking(vendor: FakeChat) -> tuple[str, ...]:
    return ("run", "--base-url", vendor.base_url, "--model", "fake-1")


@pytest.mark.real_time
@pytest.mark.usefixtures("folder")
async def test_stdout_has_the_answer_alone_and_stderr_begins_with_the_model() -> None:
    async with FakeChat(says("Forty-two.")) as vendor:
        ended = await retinue(*asking(vendor), "What is 6 times 7?")

    assert (ended.code, ended.stdout) == (0, "Forty-two.\n")
    first, started, *rest = ended.stderr.splitlines()
    assert first == f"model fake-1 at {vendor.base_url} (openai-chat)"
    assert started.startswith("main: started, run ")
    assert rest[0].startswith("main: turn 1, ")
    assert rest[1].startswith("main: completed, 1 turn, ")
    assert "\x1b" not in ended.stderr
    assert "6 times 7" not in ended.stderr


def test_quiet_prints_no_progress_and_verbose_prints_tasks(cli: Cli) -> None:
    with serving(says("Yes.")) as vendor:
        quiet = cli(*asking(vendor), "--quiet", "Is it?")
        verbose = cli(*asking(vendor), "-v", "Is it?")

    assert quiet == Ended(0, "Yes.\n", "")
    assert "Is it?" in verbose.stderr


def test_json_is_one_object_with_these_fields_and_no_others(cli: Cli) -> None:
    with serving(says("Yes.", usage=Usage(input=10, output=3, cached=4, reasoning=1))) as vendor:
        ended = cli(*asking(vendor), "--json", "Is it?")

    result = ended.json
    run_id = result.pop("run_id")
    assert result == {
        "status": "completed",
        "end_reason": "answered",
        "text": "Yes.",
        "structured": None,
        "usage": {"input": 10, "output": 3, "cached": 4, "reasoning": 1},
        "cost": None,
        "task": "Is it?",
        "error": "",
    }
    assert (ended.code, f"run {run_id}" in ended.stderr) == (0, True)


def test_the_cost_of_a_priced_model_is_printed_and_limited(cli: Cli, folder: Path) -> None:
    (folder / "retinue.toml").write_text(
        '[providers.near]\nwire = "openai-chat"\nprices = { "fake-1" = { input = 1000, output = 2000, cached = 100}}\n'
    )
    script = says("Yes.", usage=Usage(input=10, output=3, cached=4))
    with serving(script) as vendor:
        flags = ("run", "--provider", "near", "--base-url", vendor.base_url, "--model", "fake-1", "--json")
        within = cli(*flags, "--max-cost", "100", "Is it?")
        beyond = cli(*flags, "--max-cost", "0.0001", "Is it?")

    assert (within.code, within.json["cost"]) == (0, (6 * 1000 + 4 * 100 + 3 * 2000) / 1_000_000)
    assert "warning" not in within.stderr
    assert (beyond.code, beyond.json["status"], beyond.json["end_reason"]) == (1, "exhausted", "max_cost")
    assert re.fullmatch(
        r"exhausted: the cost limit is too small for the first call: limit \$0\.0001, of which \$0\.00002 is reserved "
        r"for a final answer, needed at least \$\d+\.\d+",
        beyond.stderr.splitlines()[-1],
    )
    assert len(vendor.requests) == 1


def test_a_cost_limit_without_a_known_price_is_refused_unless_it_is_accepted(cli: Cli) -> None:
    with serving(says("Yes.")) as vendor:
        refused = cli(*asking(vendor), "--quiet", "--max-cost", "0.01", "Is it?")
        in_chat = cli("chat", *asking(vendor)[1:], "--max-cost", "0.01", stdin=b"Is it?\n")
        asked = len(vendor.requests)
        wrong = cli(*asking(vendor), "--unpriced", "yes", "Is it?")
        ended = cli(*asking(vendor), "--quiet", "--max-cost", "0.01", "--unpriced", "ok", "Is it?")
        unlimited = cli(*asking(vendor), "--quiet", "Is it?")

    assert (refused.code, in_chat.code, wrong.code, asked) == (2, 2, 2, 0)
    assert refused.stderr == (
        "error: no price known for model fake-1 (provider openai-chat), so a limit on cost cannot be enforced; set it "
        "in the settings ([providers.openai-chat] prices), or limit --max-tokens instead, or accept it with "
        "--unpriced ok\n"
    )
    assert (ended.code, ended.stdout) == (0, "Yes.\n")
    assert "warning: no price known for model fake-1 (provider openai-chat)" in ended.stderr
    assert unlimited == Ended(0, "Yes.\n", "")


MONEY = """
[providers.priced]
wire = "openai-chat"
base_url = "{url}"
prices = {{ "known" = {{ input = 1.0, output = 2.0 }} }}

[agents.lead]
description = "Leads"
model = "priced:known"
fallback = ["priced:spare", "claude-sonnet-4-5"]

[agents.dig]
description = "Digs"
model = "priced:unknown"
fallback = ["ollama:qwen3", "openai:gpt-of-tomorrow"]

[agents.rest]
description = "Rests"
model = "known"
"""


@pytest.mark.parametrize(
    ("flags", "without_a_price"),
    [
        (("--dialect", "none"), []),
        (("--dialect", "none", "--agent", "lead"), ["spare (provider priced)"]),
        ((), ["spare (provider priced)", "unknown (provider priced)", "gpt-of-tomorrow (provider openai)"]),
    ],
)
def test_every_model_that_may_be_called_is_checked_for_a_price(
    cli: Cli, folder: Path, flags: tuple[str, ...], without_a_price: list[str]
) -> None:
    with serving(says("Yes.")) as vendor:
        (folder / "retinue.toml").write_text(MONEY.format(url=vendor.base_url))
        command = ("run", "--quiet", "--model", "priced:known", *flags, "--max-cost", "1", "Is it?")
        refused = cli(*command)
        ended = cli(*command[:-1], "--unpriced", "ok", "Is it?")

    assert refused.code == (2 if without_a_price else 0)
    assert (ended.code, ended.stdout) == (0, "Yes.\n")
    warned = [line.partition(", so a limit")[0] for line in ended.stderr.splitlines()]
    assert warned == [f"warning: no price known for model {model}" for model in without_a_price]


THRIFTY = """
[providers.priced]
wire = "openai-chat"
base_url = "{url}"
prices = {{ "known" = {{ input = 10.0, output = 20.0 }} }}

[runtime_profiles.thrifty]
max_cost_per_day_cents = 1

[agents.lead]
description = "Leads"
model = "priced:known"
runtime_profile = "thrifty"
"""


def test_the_end_at_the_daily_cost_limit_is_in_dollars_with_owner_and_setting(cli: Cli, folder: Path) -> None:
    """A prompt of 400 tokens costs $0.004, and $0.0036 of the day's cent is left."""
    with serving(says("Yes.", usage=Usage(input=640))) as vendor:
        (folder / "retinue.toml").write_text(THRIFTY.format(url=vendor.base_url))
        flags = ("run", "--quiet", "--agent", "lead", "--dialect", "none")
        first = cli(*flags, "Is it?")
        second = cli(*flags, "x" * 1600)

    assert first == Ended(0, "Yes.\n", "")
    assert (second.code, second.stdout) == (1, "")
    assert re.fullmatch(
        r"exhausted: the daily cost limit of agent 'lead' \(max_cost_per_day_cents\) leaves too little for the next "
        r"call: used \$0\.0064, limit \$0\.01, left \$0\.0036, needed at least \$0\.004\d+\n",
        second.stderr,
    )
    assert len(vendor.requests) == 1


def test_an_answer_that_a_budget_cuts_off_says_what_was_held(cli: Cli) -> None:
    with serving(says("It is", stop="length", usage=Usage(input=100, output=3_900))) as vendor:
        ended = cli(*asking(vendor), "--quiet", "--dialect", "none", "--max-tokens", "5000", "Is it?")

    allowed = vendor.requests[0].body["max_tokens"]
    assert ended == Ended(
        0,
        "It is\n",
        f"note: the answer may be incomplete: it was cut off after {allowed} output tokens, all that the token budget "
        "left (used 4000, limit 5000)\n",
    )


BY_THE_DAY = """
[providers.priced]
wire = "openai-chat"
base_url = "{url}"
prices = {{ "known" = {{ input = 1.0, output = 2.0 }} }}

[runtime_profiles.thrifty]
max_cost_per_day_cents = 100

[agents.lead]
description = "Leads"
model = "priced:unknown"
runtime_profile = "thrifty"

[agents.dig]
description = "Digs"
runtime_profile = "thrifty"

[agents.rest]
description = "Rests"
model = "priced:other"
"""
UNKNOWN = (
    "warning: no price known for model unknown (provider priced), so a limit on cost cannot be enforced; "
    "set it in the settings ([providers.priced] prices), or limit --max-tokens instead\n"
)


@pytest.mark.parametrize(
    ("flags", "warned"),
    [
        (("--agent", "lead", "--dialect", "none"), UNKNOWN),
        (("--agent", "lead", "--dialect", "none", "--max-cost", "1", "--unpriced", "ok"), UNKNOWN),
        (("--agent", "lead"), UNKNOWN + UNKNOWN.replace("unknown", "other")),
        (("--model", "priced:unknown"), UNKNOWN),
        (("--model", "priced:known", "--agent", "lead", "--dialect", "none"), ""),
        (("--model", "priced:unknown", "--dialect", "none"), ""),
    ],
    ids=["its own", "once", "and those below it", "of one below", "at a known price", "without a price"],
)
def test_a_daily_cost_limit_without_a_known_price_is_a_warning(
    cli: Cli, folder: Path, flags: tuple[str, ...], warned: str
) -> None:
    with serving(says("Yes.")) as vendor:
        (folder / "retinue.toml").write_text(BY_THE_DAY.format(url=vendor.base_url))
        ended = cli("run", "--quiet", *flags, "Is it?")

    assert ended == Ended(0, "Yes.\n", warned)


def test_a_chat_warns_about_a_configured_cost_limit(cli: Cli, folder: Path) -> None:
    with serving(says("Yes.")) as vendor:
        (folder / "retinue.toml").write_text(BY_THE_DAY.format(url=vendor.base_url))
        ended = cli("chat", "--quiet", "--agent", "lead", stdin=b"Is it?\n")

    assert (ended.code, ended.stderr.count(UNKNOWN)) == (0, 1)


def test_an_unknown_cost_is_null_and_a_question_mark(cli: Cli) -> None:
    with serving(says("Yes.")) as vendor:
        ended = cli(*asking(vendor), "--json", "Is it?")
    listed = cli("runs", "--json")
    shown = cli("runs")

    assert (ended.json["cost"], listed.json[0]["cost"]) == (None, None)
    assert " ? " in shown.stdout


def test_what_a_server_did_not_count_is_shown_as_estimated(cli: Cli, folder: Path) -> None:
    (folder / "retinue.toml").write_text(
        '[providers.near]\nwire = "openai-chat"\nprices = { "fake-1" = { input = 1000, output = 2000 } }\n'
    )
    with serving(says("Yes, it is so. " * 4, usage=None)) as vendor:
        flags = ("run", "--provider", "near", "--base-url", vendor.base_url, "--model", "fake-1")
        ended = cli(*flags, "--json", "Is it?")
        plain = cli(*flags, "Is it?")
    listed, shown, tree = cli("runs", "--json"), cli("runs"), cli("runs", "tree", ended.json["run_id"])

    estimate = ended.json["estimated"]
    assert (ended.json["usage"]["input"], ended.json["usage"]["output"], ended.json["cost"]) == (0, 0, None)
    assert (estimate["output"], estimate["input"] > 0) == (15, True)
    assert estimate["cost"] == pytest.approx(estimate["input"] / 1000 + 15 / 500)
    assert [run["estimated"] for run in listed.json] == [estimate, estimate]
    text = f"not counted by the server: about {estimate['input']} tokens in, 15 out, $"
    assert f"completed, 1 turn, about {estimate['input'] + 15} tokens, about $" in plain.stderr
    assert text in tree.stdout
    assert shown.stdout.count(f"~{estimate['input'] + 15}") == 2


def test_a_dash_reads_the_prompt_from_stdin(cli: Cli) -> None:
    with serving(says("Done.")) as vendor:
        ended = cli(*asking(vendor), "-", stdin="Grüße\nan alle\n".encode())
        empty = cli(*asking(vendor), "-", stdin=b" \n")
        not_text = cli(*asking(vendor), "-", stdin=b"\xff\xfe")

    assert (ended.code, vendor.requests[0].body["messages"][-1]["content"]) == (0, "Grüße\nan alle\n")
    assert (empty.code, not_text.code, len(vendor.requests)) == (2, 2, 1)
    assert "stdin has no prompt" in empty.stderr
    assert "not UTF-8" in not_text.stderr


def test_flags_set_tools_and_system_prompt(cli: Cli) -> None:
    with serving(says("Done.")) as vendor:
        cli(*asking(vendor), "--quiet", "--dialect", "spec", "--system", "Be brief.", "hello")
        cli(*asking(vendor), "--quiet", "--dialect", "none", "--system", "Be brief.", "hello")
        cli(*asking(vendor), "--quiet", "--dialect", "xzatoma", "hello")
        cli(*asking(vendor), "--quiet", "hello")

    spec, plain, xzatoma, usual = (heard.body for heard in vendor.requests)
    assert [tool["function"]["name"] for tool in spec["tools"]] == ["subagent", "shared_context"]
    assert "tools" not in plain
    assert usual["messages"] == [{"role": "user", "content": "hello"}], (
        "delegation costs nothing where it is not wanted"
    )
    assert "tools" not in usual
    declared = {tool["function"]["name"]: tool["function"]["parameters"] for tool in xzatoma["tools"]}
    assert "label" in declared["subagent"]["properties"]
    assert spec["messages"][0]["content"].startswith("Be brief.")
    assert plain["messages"] == [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "hello"}]


def test_settings_define_agents_and_tools_and_the_environment_overrides(folder: Path, cli: Cli) -> None:
    (folder / "mytools.py").write_text(
        "import retinue\n\n@retinue.tool\ndef depth(place: str) -> str:\n    return f'{place} is 3 m deep'\n"
    )
    script = ChatScript().play(calls("depth", place="the well"), says("Three metres."))
    with serving(script) as vendor:
        (folder / "retinue.toml").write_text(
            f"""
            [tools]
            modules = ["./mytools.py"]
            [providers.near]
            wire = "openai-chat"
            base_url = "{vendor.base_url}"
            [agents.digger]
            system_prompt = "You dig."
            tools = ["depth"]
            model = "near:from-the-file"
            """
        )
        ended = cli("run", "--agent", "digger", "--dialect", "none", "How deep?")
        cli("run", "--agent", "digger", "--dialect", "none", "hi", env={"RETINUE_MODEL": "from-the-environment"})

    assert (ended.code, ended.stdout) == (0, "Three metres.\n")
    assert ended.stderr.startswith(f"model from-the-file at {vendor.base_url} (near, openai-chat)\n")
    first, second, third, _ = (heard.body for heard in vendor.requests)
    assert first["messages"][0]["content"] == "You dig."
    assert [tool["function"]["name"] for tool in first["tools"]] == ["depth"]
    assert second["messages"][-1]["content"] == "the well is 3 m deep"
    assert third["model"] == "from-the-environment"


def test_without_an_agent_only_named_tools_are_offered(folder: Path, cli: Cli) -> None:
    one, two = (f"@retinue.tool\ndef {name}() -> str:\n    return '{name}'\n" for name in ("one", "two"))
    (folder / "mytools.py").write_text(f"import retinue\n\n{one}\n{two}")
    (folder / "retinue.toml").write_text('[tools]\nmodules = ["mytools.py"]\n')
    with serving(says("ok")) as vendor:
        cli(*asking(vendor), "--quiet", "--dialect", "none", "hi")
        cli(*asking(vendor), "--quiet", "--dialect", "none", "--tools", "two", "hi")
        unknown = cli(*asking(vendor), "--quiet", "--tools", "three", "hi")

    nothing, named = (heard.body for heard in vendor.requests)
    assert "tools" not in nothing
    assert [tool["function"]["name"] for tool in named["tools"]] == ["two"]
    assert unknown.code == 2
    assert unknown.stderr.startswith(
        "error: unknown tool: 'three'; known: one, two, search_web, scrape_webpage, fetch, "
    )


def test_the_key_goes_into_the_request_and_nowhere_else(home: Path, cli: Cli) -> None:
    with serving(says("ok")) as vendor:
        ended = cli(*asking(vendor), "--api-key-env", "MY_KEY", "hi", env={"MY_KEY": "sk-secret"})

    assert vendor.requests[0].headers["authorization"] == "Bearer sk-secret"
    assert "sk-secret" not in ended.stderr + ended.stdout
    assert not any(b"sk-secret" in path.read_bytes() for path in home.rglob("*") if path.is_file())


def test_running_tasks_are_cancelled_with_their_root_and_named(cli: Cli) -> None:
    script = (
        ChatScript()
        .play(
            calls("subagent", action="define", name="dig", description="Digs.", system_prompt="You are a spade."),
            calls("subagent", action="spawn", agent="dig", task="Take your time."),
            says("I did not wait."),
        )
        .play(FakeResponse(delay=60.0), words="You are a spade.")
    )
    with serving(script) as vendor:
        ended = cli(*asking(vendor), "--dialect", "spec", "Go.")

    assert (ended.code, ended.stdout) == (0, "I did not wait.\n")
    assert "cancelled 1 running task(s): t_01\n" in ended.stderr
    assert "dig t_01: cancelled" in ended.stderr


def test_a_run_out_of_turns_and_one_without_an_answer_exit_1(cli: Cli) -> None:
    with serving(calls("shared_context", action="list_keys")) as vendor:
        exhausted = cli(*asking(vendor), "--max-turns", "2", "hi")
    with serving(says("")) as vendor:
        empty = cli(*asking(vendor), "--json", "hi")

    assert (exhausted.code, exhausted.stdout) == (1, "")
    assert "exhausted: max_turns 2 reached, 2 used\n" in exhausted.stderr
    assert (empty.code, empty.json["status"], empty.json["end_reason"], empty.json["text"]) == (
        1,
        "completed",
        "empty",
        "",
    )
    assert "the model gave an empty answer" in empty.stderr


def test_a_session_is_found_again_by_its_name(cli: Cli) -> None:
    script = ChatScript().play(
        calls("shared_context", action="write", key="fact", value="the well is dry"), says("Noted.")
    )
    with serving(script) as vendor:
        cli(*asking(vendor), "--quiet", "--dialect", "spec", "--session", "wells", "Note it.")
    context = cli("context", "show", "wells", "--json")
    runs = cli("runs", "--session", "wells", "--json")

    assert [(entry["key"], entry["value"]) for entry in context.json["entries"]] == [("fact", "the well is dry")]
    assert [row["outcome"] for row in runs.json] == ["completed"]


def test_log_lines_are_turned_on_by_the_environment(cli: Cli) -> None:
    script = ChatScript().play(calls("shared_context", action="list_keys"), says("Nothing."))
    with serving(script) as vendor:
        loud = cli(*asking(vendor), "--quiet", "--dialect", "spec", "hi", env={"RETINUE_LOG": "info"})
        wrong = cli(*asking(vendor), "--quiet", "hi", env={"RETINUE_LOG": "loud"})

    assert " INFO retinue.spec " in loud.stderr
    assert "tool=shared_context" in loud.stderr
    assert (wrong.code, "RETINUE_LOG: unknown level 'loud'" in wrong.stderr) == (2, True)


@pytest.mark.real_time
@pytest.mark.usefixtures("folder")
async def test_a_closed_stdout_is_not_an_error() -> None:
    async with FakeChat(says("word " * 100_000)) as vendor:
        reading, writing = os.pipe()
        os.close(reading)
        process = await asyncio.create_subprocess_exec(
            sys.executable, "-m", "retinue", "run", "--quiet", "--base-url", vendor.base_url, "--model", "m", "hi",
            stdout=writing, stderr=asyncio.subprocess.PIPE,
        )  # fmt: skip
        os.close(writing)
        _, stderr = await process.communicate()

    assert (stderr, process.returncode) == (b"", 1)


def test_output_of_tools_goes_to_stderr(cli: Cli, folder: Path) -> None:
    (folder / "mine.py").write_text(
        'import retinue\n\n\n@retinue.tool\ndef count() -> str:\n    "Count."\n    print("noise")\n    return "3"\n'
    )
    (folder / "retinue.toml").write_text('[tools]\nmodules = ["./mine.py"]\n')
    (folder / "lines.json").write_text('[{"call": {"name": "count"}}, {"say": "three"}]')
    order = ("--model", "scripted:lines.json", "--tools", "count")

    plain, as_json = cli("run", *order, "hi"), cli("run", "--json", *order, "hi")
    chat = cli("chat", *order, stdin=b"hi\n")

    assert (plain.stdout, as_json.json["text"], chat.stdout) == ("three\n", "three", "three\n")
    assert all("noise\n" in each.stderr for each in (plain, as_json, chat))


def test_attach_adds_files_to_the_task(cli: Cli, tmp_path: Path) -> None:
    notes = tmp_path / "pool.toml"
    notes.write_text("max = 10\n")
    with serving(says("Ten.")) as vendor:
        ended = cli("run", "--base-url", vendor.base_url, "--model", "m", "--attach", str(notes), "How many?")
        missing = cli("run", "--base-url", vendor.base_url, "--model", "m", "--attach", "nothing.png", "How many?")

    assert (ended.code, ended.stdout) == (0, "Ten.\n")
    (request,) = vendor.requests
    assert request.body["messages"][-1]["content"] == 'How many?\n\n<file name="pool.toml">\nmax = 10\n</file>'
    assert (missing.code, "cannot read nothing.png: No such file or directory" in missing.stderr) == (2, True)
