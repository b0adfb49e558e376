"""Errors and exit codes of `retinue run`: of the command line, the server and tools."""

from __future__ import annotations

import asyncio
import re
import shlex
import socket
import subprocess
import sys
from pathlib import Path

import pytest

from retinue.app.follow import failure_text
from retinue.app.open import default_home
from retinue.app.open import open as open_retinue
from retinue.app.run_spec import LaunchConfig
from retinue.core.errors import ProviderError
from retinue.core.run import LimitMet, Outcome
from retinue.providers.catalog import provider_config
from retinue.providers.scripted import calls, calls_verbatim, fails, says
from retinue.testing.fake_chat import ChatScript, Playable, error_response
from retinue.testing.fake_server import FakeResponse
from tests.cli.conftest import Cli
from tests.cli.stage import Ended, serving
from tests.internals import tune


@pytest.fixture(autouse=True)
def no_pauses(monkeypatch: pytest.MonkeyPatch) -> None:
    tune(monkeypatch, first_pause=0.0)


@pytest.mark.parametrize(
    ("arguments", "complaint"),
    [
        (["run", "--nonsense", "hi"], "No such option: --nonsense"),
        (["run"], "Missing argument 'PROMPT'"),
        (["run", " "], "the prompt is empty"),
        (["run", "--max-turns", "0", "hi"], "--max-turns"),
        (["run", "--max-turns", "many", "hi"], "Invalid value for '--max-turns': 'many' is not a whole number.\n"),
        (["run", "--timeout", "abc", "hi"], "Invalid value for '--timeout': 'abc' is not a number.\n"),
        (["run", "--timeout", "nan", "hi"], "--timeout: found nan; expected a finite number"),
        (["run", "--timeout", "0", "hi"], "--timeout: found 0; expected a number above 0 and up to 1000000000"),
        (["run", "--max-cost", "1e300", "hi"], "--max-cost: found 1e+300; expected a number from 0 to 1000000000"),
        (["chat", "--max-cost", "1e300"], "--max-cost: found 1e+300; expected a number from 0 to 1000000000"),
        (["run", "--base-url", "http://[::1", "hi"], "base URL is not an address: what follows the // is no host"),
        (["run", "--base-url", "http://h:99999/v1", "hi"], "is not an address: what follows the // is no host"),
        (["context", "create", ""], "the name of the session is empty"),
        (["run", "--json", "--quiet", "hi"], "--json and --quiet exclude each other"),
        (["run", "--dialect", "none", "--dialect", "spec", "hi"], "exclude each other"),
        (["run", "--dialect", "elvish", "--base-url", "http://x/v1", "--model", "m", "hi"], "unknown dialect: "),
        (["run", "--dialect", "spec", "--dialect", "xzatoma", "--base-url", "http://x/v1", "--model", "m", "hi"],
         "dialects 'spec' and 'xzatoma' both have a tool named 'subagent'"),
        (["run", "--agent", "other", "hi"], "unknown agent: 'other'; the settings have no [agents.NAME]"),
        (["run", "--provider", "other", "hi"], "unknown provider: 'other'; known: "),
        (["run", "--provider", "openai-chat", "--model", "m", "hi"], "OPENAI_API_KEY is not set"),
        (["run", "--provider", "openai-chat", "--api-key-env", "MINE", "--model", "m", "hi"], "MINE is not set"),
        (["run", "--provider", "openai-chat", "--api-key-env", "sk-not-for-logs", "--model", "m", "hi"],
         "api_key_env: found a string of 15 characters; expected the name of an environment variable, never a key"),
        (["run", "--api-key-env", "sk-not-for-logs", "--model", "m", "hi"], "api_key_env: found a string of 15 chara"),
        (["run", "--base-url", "ftp://x", "--model", "m", "hi"], "'ftp://x' is not an address"),
        (["run", "--config", "missing.toml", "hi"], "missing.toml: there is no such file"),
        (["fly"], "No such command 'fly'"),
        (["runs", "show"], "Missing argument 'ID'"),
    ],
)  # fmt: skip
def test_bad_usage_exits_2_with_a_reason_on_stderr(cli: Cli, arguments: list[str], complaint: str) -> None:
    ended = cli(*arguments)

    assert (ended.code, ended.stdout) == (2, "")
    assert complaint in ended.stderr
    assert "Traceback" not in ended.stderr
    assert "not-for-logs" not in ended.stderr


@pytest.mark.parametrize(
    ("played", "status", "words", "asked"),
    [
        (error_response(400, "you made a mistake"), 400, "you made a mistake", 1),
        (error_response(401, "bad key sk-verysecret"), 401, "Check the key in MINE", 1),
        (error_response(404, "no such model"), 404, "Check the model name 'fake-1'", 1),
        (error_response(429, "slow down", retry_after="0"), 429, "slow down", 4),
        (error_response(500, "on fire"), 500, "on fire", 64),  # without pauses; else it would be fewer
        (fails(ProviderError("", fault="cut", partial="It is bec"), times=9), None, "", 4),
        (
            FakeResponse(headers={"Content-Type": "text/html"}, pieces=(b"<html>hello</html>",)),
            None,
            "<html>hello</html>",
            4,
        ),
    ],
    ids=["400", "401", "404", "429", "500", "cut stream", "not JSON"],
)
def test_a_server_error_fails_the_run_with_its_message(
    cli: Cli, played: Playable, status: int | None, words: str, asked: int
) -> None:
    with serving(played) as vendor:
        flags = ("--base-url", vendor.base_url, "--api-key-env", "MINE", "--model", "fake-1")
        ended = cli("run", *flags, "--json", "hi", env={"MINE": "sk-verysecret"})

    assert (ended.code, len(vendor.requests)) == (1, asked)
    assert (ended.json["status"], ended.json["end_reason"]) == ("failed", "model_error")
    assert words in ended.stderr
    assert status is None or f"answered {status}" in ended.stderr
    assert "Traceback" not in ended.stderr
    assert "verysecret" not in ended.stderr + ended.stdout


def test_text_before_a_broken_stream_is_on_stderr(cli: Cli) -> None:
    with serving(fails(ProviderError("", fault="cut", partial="It is bec"), times=9)) as vendor:
        ended = cli("run", "--base-url", vendor.base_url, "--model", "m", "Why?")

    assert (ended.code, ended.stdout) == (1, "")
    assert "the answer so far:\nIt is bec\n" in ended.stderr


def test_a_server_that_is_not_there_is_named(cli: Cli) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))  # bound and not listening: the port is taken and refuses connections
        port = taken.getsockname()[1]
        ended = cli("run", "--base-url", f"http://127.0.0.1:{port}/v1", "--model", "m", "hi")

    assert (ended.code, ended.stdout) == (1, "")
    assert f"cannot reach 127.0.0.1:{port}" in ended.stderr


@pytest.fixture
def tools(folder: Path) -> None:
    (folder / "retinue.toml").write_text('[tools]\nmodules = ["mytools.py"]\n')
    (folder / "mytools.py").write_text(
        """
import retinue

@retinue.tool
def explode() -> str:
    raise RuntimeError("boom")

@retinue.tool
def flood() -> str:
    return "x" * 50_000_000
"""
    )


@pytest.mark.usefixtures("tools")
@pytest.mark.parametrize(
    ("line", "result"),
    [
        (calls("explode"), "boom"),
        (calls("nowhere"), "nowhere"),
        (calls_verbatim("explode", "{not json"), "JSON"),
    ],
    ids=["a tool that raises", "a tool that does not exist", "arguments that are no JSON"],
)
def test_the_model_reads_a_tool_error_and_continues(cli: Cli, line: Playable, result: str) -> None:
    with serving(ChatScript().play(line, says("I see."))) as vendor:
        flags = ("--base-url", vendor.base_url, "--model", "m", "--dialect", "none", "--tools", "explode,flood")
        ended = cli("run", *flags, "hi")

    assert (ended.code, ended.stdout) == (0, "I see.\n")
    assert result in vendor.requests[1].body["messages"][-1]["content"]
    assert "Traceback" not in ended.stderr
    assert "not-for-logs" not in ended.stderr


@pytest.mark.usefixtures("tools")
def test_a_huge_tool_result_is_truncated_for_the_model(cli: Cli) -> None:
    with serving(ChatScript().play(calls("flood"), says("That was a lot."))) as vendor:
        ended = cli("run", "--base-url", vendor.base_url, "--model", "m", "--dialect", "none", "--tools", "flood", "hi")

    assert (ended.code, ended.stdout) == (0, "That was a lot.\n")
    read = vendor.requests[1].body["messages"][-1]["content"]
    assert read.endswith("\n[Cut: 50000 of 50000000 characters are shown. Ask for less.]")
    shown = cli("runs", "show", cli("runs", "--json").json[0]["run_id"])
    assert (shown.code, len(shown.stdout) < 100_000) == (0, True)


@pytest.mark.parametrize(
    ("settings", "complaint"),
    [
        ("[agents.dig", "retinue.toml:1:"),
        ("[agents.Dig]", "retinue.toml:1: agents.Dig: "),
        ("[agents.dig]\nmax_turns = 0", "retinue.toml:2: agents.dig.max_turns: found 0"),
        ('[agents.dig]\nmax_turns = "ten"', 'found "ten" (a string)'),
        ("[agents.dig]\nmax_turn = 3", "did you mean max_turns?"),
        ("[agent]\nname = 1", "retinue.toml:"),
        ('[providers.x]\nbase_url = "http://x"', "providers.x.wire: missing"),
        ('[providers.x]\nwire = "opanai-chat"', "did you mean openai-chat?"),
        ('[providers.x]\nwire = "openai-chat"\nbase_url = "x"', "expected an address"),
        ('[tools]\nmodules = ["gone.py"]', 'found nothing at "'),
        ('[tools]\nmodules = "mine.py"', "expected an array of strings"),
        ('[providers.x]\nwire = "openai-chat"\napi_key_env = "sk-123-secret"', "never a key itself"),
    ],
)
def test_a_settings_error_is_printed_with_its_line_and_exits_2(
    cli: Cli, folder: Path, settings: str, complaint: str
) -> None:
    (folder / "retinue.toml").write_text(settings)

    ended = cli("run", "--base-url", "http://127.0.0.1:9/v1", "--model", "m", "hi")

    assert (ended.code, ended.stdout) == (2, "")
    assert complaint in ended.stderr
    assert "sk-123" not in ended.stderr


@pytest.mark.parametrize(
    ("module", "complaint"),
    [
        ("def broken(:\n", "mytools.py:1: cannot be imported: SyntaxError"),
        ("x = 1\n", "it defines no tools"),
        ("import retinue\n1 / 0\n", "mytools.py:2: cannot be imported: ZeroDivisionError"),
    ],
)
def test_a_module_without_tools_exits_2_with_its_line(cli: Cli, folder: Path, module: str, complaint: str) -> None:
    (folder / "retinue.toml").write_text('[tools]\nmodules = ["mytools.py"]\n')
    (folder / "mytools.py").write_text(module)

    ended = cli("run", "--base-url", "http://127.0.0.1:9/v1", "--model", "m", "hi")

    assert (ended.code, ended.stdout) == (2, "")
    assert complaint in ended.stderr


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="there is no device that is always full")
def test_an_unwritable_answer_is_reported_and_stays_stored(cli: Cli) -> None:
    with serving(ChatScript().play(says("42"))) as vendor, open("/dev/full", "wb") as full:
        ended = subprocess.run(
            [sys.executable, "-m", "retinue", "run", "--base-url", vendor.base_url, "--model", "m", "-q", "6 times 7?"],
            stdout=full,
            stderr=subprocess.PIPE,
            text=True,
        )

    assert ended.returncode == 1
    assert ended.stderr == (
        "error: cannot write: No space left on device; runs that have ended are stored: see retinue runs\n"
    )
    assert cli("runs", "resume", cli("runs", "--json").json[0]["run_id"], "--quiet").stdout == "42\n"


def test_a_deleted_working_folder_is_bad_usage(cli: Cli, folder: Path) -> None:
    folder.rmdir()

    assert cli("run", "hi") == Ended(
        2, "", "error: the current folder does not exist any more: change to another one\n"
    )


def test_an_inaccessible_folder_is_named_without_a_traceback(cli: Cli) -> None:
    home = f"/{'x' * 300}"

    assert cli("memory", "list", env={"RETINUE_HOME": home}) == Ended(
        1, "", f"error: {home}/memory.db: File name too long (-v shows where)\n"
    )


@pytest.mark.parametrize(
    ("elsewhere", "ended"),
    [
        ("2>&-", (0, "42\n")),
        ("2>/dev/full", (0, "42\n")),
        ("<&- 2>&-", (0, "42\n")),
        (">&-", (0, "")),
        ("<&- >&- 2>&-", (0, "")),
    ],
)
@pytest.mark.skipif(sys.platform != "linux", reason="/dev/full is Linux's")
def test_a_closed_stderr_does_not_stop_the_answer(folder: Path, elsewhere: str, ended: tuple[int, str]) -> None:
    (folder / "lines.json").write_text('[{"say": "42"}]')

    words = f"-m retinue run --model scripted:lines.json --dialect none hi {elsewhere}"
    command = f"{shlex.quote(sys.executable)} {words}"
    done = subprocess.run(command, shell=True, capture_output=True, text=True, check=False)

    assert (done.returncode, done.stdout, done.stderr) == (*ended, done.stderr if elsewhere == ">&-" else "")


def test_a_closed_stdin_has_no_prompt(folder: Path) -> None:
    command = f"{shlex.quote(sys.executable)} -m retinue run --model scripted:lines.json - <&-"
    done = subprocess.run(command, shell=True, capture_output=True, text=True, check=False)

    assert (done.returncode, done.stdout) == (2, "")
    assert "stdin has no prompt" in done.stderr


@pytest.mark.parametrize(
    ("written", "complaint"),
    [
        (None, "the script FILE cannot be read: No such file or directory"),
        ("x", "FILE: the script cannot be read: JSON is malformed: invalid character (byte 0)"),
    ],
)
def test_an_unreadable_script_is_bad_usage_without_a_run(
    cli: Cli, folder: Path, home: Path, written: str | None, complaint: str
) -> None:
    file = folder / "lines.json"
    if written is not None:
        file.write_text(written)

    run, chat = cli("run", "--model", "scripted:lines.json", "hi"), cli("chat", "--model", "scripted:lines.json")

    assert run == Ended(2, "", f"error: {complaint.replace('FILE', str(file))}\n")
    assert (chat.code, chat.stderr, home.exists()) == (2, run.stderr, False)


def test_a_run_with_a_missing_script_stays_interrupted(cli: Cli, folder: Path) -> None:
    file = folder / "lines.json"
    file.write_text('[{"say": "Let me th", "ending": "silence"}]')

    async def abandoned() -> str:
        launch_config = LaunchConfig(
            model=str(file), provider_configs=(provider_config("scripted"),), workspace=str(folder)
        )
        async with open_retinue(model=f"scripted:{file}", home=default_home(), dialects=()) as owner:
            owner.launch_config = launch_config
            return (await owner.spawn("Think.")).run_id

    run_id = asyncio.run(abandoned())
    file.unlink()
    gone = cli("runs", "resume", run_id)
    file.write_text('[{"say": "I thought."}]')
    resumed = cli("runs", "resume", run_id, "--quiet")

    assert gone == Ended(2, "", f"error: the script {file} cannot be read: No such file or directory\n")
    assert resumed == Ended(0, "I thought.\n", "")


def test_a_token_limit_below_the_first_request_is_reported(cli: Cli, folder: Path) -> None:
    (folder / "lines.json").write_text('[{"say": "42"}]')

    ended = cli("run", "--model", "scripted:lines.json", "--quiet", "--max-tokens", "1", "hi")

    text = r"exhausted: the token budget is too small for the first call: limit 1, needed at least \d+\n"
    assert (ended.code, ended.stdout) == (1, "")
    assert re.fullmatch(text, ended.stderr)


def test_a_token_limit_that_an_earlier_version_stored_is_reported() -> None:
    met = LimitMet("max_tokens", 500, 600)
    error = "the token budget is spent: used 500, limit 600"
    outcome = Outcome(result="exhausted", reason="max_tokens", limit=met, turns=2, error=error)

    assert failure_text(outcome) == (
        "exhausted: 500 of max_tokens 600 used, and the next request needs more than is left"
    )
