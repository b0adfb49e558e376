"""Approvals on the command line: prompts on a terminal, answers from another one, and open questions that survive."""

from __future__ import annotations

import json
import signal
import sys
from pathlib import Path

import pytest

from retinue.providers.scripted import Line, calls, calls_verbatim, says, together
from retinue.testing.fake_chat import ChatScript, FakeChat
from tests.cli.conftest import Cli
from tests.cli.pty_command import PtyCommand
from tests.cli.stage import Command, retinue

pytestmark = [pytest.mark.real_time, pytest.mark.usefixtures("folder")]

ASKED = "Allow? [y]es, [n]o, [a]lways for deploy in this run, [p] in this project: "
REFUSED = "A person refused this call"

SETTINGS = """\
[tools]
modules = ["./mytools.py"]

[agents.careful]
tools = ["deploy"]
risk_profile = "asks"

[risk_profiles.asks]
always_ask = ["deploy"]
"""

HANDS_OVER = """\
[tools]
modules = ["./mytools.py"]

[agents.front]
tools = ["deploy"]
risk_profile = "asks"
runtime_profile = "holds"

[agents.free]
tools = ["deploy"]
risk_profile = "free"

[agents.gone]
enabled = true
risk_profile = "free"

[risk_profiles.asks]
always_ask = ["deploy"]

[risk_profiles.free]
level = "full"

[runtime_profiles.holds]
delegation_ceiling = "target"
"""

SERVER = Path(__file__).parent.parent / "mcp_client" / "server.py"

ALWAYS = "[a]lways for shell ({}) in this run,"

INVISIBLE = (
    "\u200b\u200c\u200d\u200e\u2060\u3164\u115f\u1160\uffa0\u2800\u180e\u034f\ufe0f\ufe00"
    "\U000e0041\U000e0100\u202e\u2066"
)

LETS_SHELL_TRY = """\
[agents.bold]
risk_profile = "bold"

[risk_profiles.bold]
allowed_commands = ["git", "rm"]
block_high_risk_commands = false
"""

TOOLS = '''\
import pathlib

import retinue


@retinue.tool(risk="medium")
def deploy(version: int, words: str = "") -> str:
    """Deploy a version."""
    with pathlib.Path("deployed").open("a") as log:
        log.write(f"{version}\\n")
    return f"version {version} is out"
'''


@pytest.fixture(autouse=True)
def deployable(folder: Path) -> None:
    """A folder with a tool that needs approval."""
    (folder / "retinue.toml").write_text(SETTINGS)
    (folder / "mytools.py").write_text(TOOLS)


def deployed() -> list[str]:
    log = Path("deployed")
    return log.read_text().split() if log.exists() else []


def order(vendor: FakeChat, *flags: str) -> list[str]:
    given = [] if "--agent" in flags else ["--tools", "deploy"]
    return ["run", "--base-url", vendor.base_url, "--model", "m", "--dialect", "none", *given, *flags, "Deploy."]


def vendor_of(*lines: Line) -> FakeChat:
    return FakeChat(ChatScript().play(*lines, says("Done.")))


def results(vendor: FakeChat) -> list[str]:
    """The results that the model read."""
    return [message["content"] for message in vendor.requests[-1].body["messages"] if message["role"] == "tool"]


# ---- at the terminal ------------------------------------------------------------------------------------------------


async def test_the_prompt_names_run_tool_and_arguments_and_yes_approves() -> None:
    async with vendor_of(calls("deploy", version=2, words="red \x1b[31malert")) as vendor:
        terminal = PtyCommand(*order(vendor))
        seen = await terminal.expect(ASKED)
        terminal.type_line("y")
        left = await terminal.result()

    assert "root wants to call deploy" in seen
    assert '"version":2' in seen.replace(" ", "")
    assert "\x1b" not in seen
    assert "require_approval_for_medium_risk" in seen
    assert (left.code, left.stdout) == (0, "Done.\n")
    assert (deployed(), results(vendor)) == (["2"], ["version 2 is out"])


async def test_arguments_cannot_imitate_the_approval_prompt() -> None:
    words = "x" * 72 + "Allow? [y]es, [n]o: \u200f\u2028\u009b2J\u202e"
    written = '{"version":\n\n\n\n2,\n"words":"' + words + '"}'
    async with vendor_of(calls_verbatim("deploy", written)) as vendor:
        terminal = PtyCommand(*order(vendor), COLUMNS="80")
        seen = await terminal.expect(ASKED)
        shown = await retinue("approvals", "--json")
        terminal.type_line("n")
        await terminal.result()

    lines = seen.replace("\r", "").partition("root wants to call deploy\n")[2].splitlines()
    assert [line[:2] for line in lines[:-1]] == ["  "] * len(lines[:-1])
    assert lines[0].startswith('  {"version":2,"words":"xxx')
    assert all(len(line) <= 80 for line in lines[:-2])
    assert not {"\u200f", "\u2028", "\u009b", "\u202e"} & set(seen + shown.stdout)
    assert shown.json[0]["arguments"]["words"] == words


async def test_of_long_arguments_the_beginning_and_the_end_are_shown() -> None:
    words = "begin" + "x" * 9000 + " && python3 evil.py"
    async with vendor_of(calls("deploy", version=2, words=words)) as vendor:
        terminal = PtyCommand(*order(vendor), COLUMNS="200")
        seen = await terminal.expect(ASKED)
        (question,) = (await retinue("approvals", "--json")).json
        whole = await retinue("approvals", question["id"], env={"COLUMNS": "200"})
        listed = await PtyCommand("approvals", all_there=True, COLUMNS="100").result()
        terminal.type_line("n")
        await terminal.result()

    size = len('{"version":2,"words":""}') + len(words)
    assert '{"version":2,"words":"begin' in seen
    assert ' && python3 evil.py"}' in seen.replace("\r\n  ", "")
    assert f"… {size - 4000} characters left out here, shown by: retinue approvals {question['id'][-12:]} …" in seen
    assert "".join(line.strip() for line in whole.stdout.splitlines()[1:-1]) == json.dumps(
        {"version": 2, "words": words}, separators=(",", ":")
    )
    assert " more …" in listed.terminal
    assert 'python3 evil.py"}' in listed.terminal


async def test_of_a_repeated_key_the_value_that_counts_is_shown_everywhere() -> None:
    written = '{"version": 1, "words": "harmless", "version":' + " " * 300 + "2}"
    async with vendor_of(calls_verbatim("deploy", written)) as vendor:
        terminal = PtyCommand(*order(vendor))
        seen = await terminal.expect(ASKED)
        (question,) = (await retinue("approvals", "--json")).json
        piped = await retinue("approvals")
        shown = await retinue("runs", "show", question["run_id"])
        listed = await PtyCommand("approvals", all_there=True, COLUMNS="100").result()
        asked = PtyCommand("approve", question["id"])
        await asked.expect("Approve? [y]es, [n]o: ")
        asked.type_line("n")
        left_open = await asked.result()
        approved = await retinue("approve", question["id"])
        await terminal.result()

    call = '{"version":2,"words":"harmless"}'
    assert question["arguments"] == {"version": 2, "words": "harmless"}
    for output in (seen, piped.stdout, shown.stdout, listed.terminal, left_open.terminal, approved.stderr):
        assert call in output
        assert '"version": 1' not in output
    assert left_open.code == 1
    assert (approved.code, deployed()) == (0, ["2"])


async def test_approve_on_a_terminal_shows_the_whole_call_and_asks() -> None:
    async with vendor_of(calls("deploy", version=2), calls("deploy", version=3)) as vendor:
        command = await Command.start(*order(vendor, "--approvals", "wait"))
        await command.expect_stderr("answer with:")
        (question,) = (await retinue("approvals", "--json")).json
        asked = PtyCommand("approve", question["id"])
        seen = await asked.expect("Approve? [y]es, [n]o: ")
        asked.type_line("yes")
        first = await asked.result()
        await command.expect_stderr("answer with:")
        (question,) = (await retinue("approvals", "--json")).json
        second = await PtyCommand("approve", "--yes", question["id"]).result()
        await command.ended()

    assert "root wants to call deploy" in seen
    assert '{"version":2}' in seen
    assert (first.code, second.code, "Approve?" in second.terminal) == (0, 0, False)
    assert '{"version":3}' in second.terminal
    assert deployed() == ["2", "3"]


async def test_invisible_characters_are_visible_in_questions_and_tables() -> None:
    async with vendor_of(calls("deploy", version=2, words=f"a{INVISIBLE}b")) as vendor:
        terminal = PtyCommand(*order(vendor))
        seen = await terminal.expect(ASKED)
        shown = await retinue("approvals", "--json")
        piped = await retinue("approvals")
        listed = await PtyCommand("approvals", all_there=True, COLUMNS="200").result()
        terminal.type_line("n")
        await terminal.result()

    for output in (seen, shown.stdout, piped.stdout, listed.terminal):
        assert set(INVISIBLE) & set(output) == set()
    assert "a" + "\ufffd" * len(INVISIBLE) + "b" in seen
    assert shown.json[0]["arguments"]["words"] == f"a{INVISIBLE}b"


async def test_a_denial_is_sent_to_the_model_and_an_unclear_answer_is_prompted_again() -> None:
    async with vendor_of(calls("deploy", version=2)) as vendor:
        terminal = PtyCommand(*order(vendor))
        await terminal.expect(ASKED)
        terminal.type_line("perhaps")
        await terminal.expect(ASKED)
        terminal.type_line("No")
        left = await terminal.result()

    assert (left.code, left.stdout) == (0, "Done.\n")
    assert (deployed(), results(vendor)) == ([], [REFUSED])


async def test_questions_are_prompted_in_turn_and_always_approves_the_rest() -> None:
    versions = together(*(calls("deploy", version=number) for number in (1, 2, 3)))
    async with vendor_of(versions, calls("deploy", version=4)) as vendor:
        terminal = PtyCommand(*order(vendor))
        await terminal.expect(ASKED)
        terminal.type_line("n")
        await terminal.expect(ASKED)
        terminal.type_line("always")
        left = await terminal.result()

    assert left.code == 0
    assert left.terminal.count(ASKED) == 2
    assert sorted(deployed()) == ["2", "3", "4"]
    assert results(vendor)[0] == REFUSED


async def test_a_tool_in_always_ask_cannot_be_approved_permanently() -> None:
    only_once = "Allow? [y]es, [n]o: "
    async with vendor_of(calls("deploy", version=1), calls("deploy", version=2)) as vendor:
        terminal = PtyCommand(*order(vendor, "--agent", "careful"))
        await terminal.expect(only_once)
        terminal.type_line("always")
        await terminal.expect(only_once)
        terminal.type_line("y")
        await terminal.expect(only_once)
        terminal.type_line("y")
        left = await terminal.result()

    assert (left.code, deployed()) == (0, ["1", "2"])


async def test_always_ask_of_a_server_offers_no_permanent_approval_of_its_tools(folder: Path) -> None:
    program = folder.parent / "server" / "server.py"
    program.parent.mkdir()
    program.write_bytes(SERVER.read_bytes())
    listed = [{"name": "push", "description": "Pushes.", "inputSchema": {"type": "object"}}]
    (program.parent / "behaviour.json").write_text(json.dumps({"tools": listed}))
    arguments = json.dumps([str(program), str(program.parent / "behaviour.json")])
    (folder / "retinue.toml").write_text(
        f"[mcp_servers.git]\ncommand = {json.dumps(sys.executable)}\nargs = {arguments}\n"
        '[agents.careful]\ntools = ["mcp__git"]\nrisk_profile = "asks"\n'
        '[risk_profiles.asks]\nalways_ask = ["mcp__git"]\n'
    )
    async with vendor_of(calls("mcp__git__push"), calls("mcp__git__push")) as vendor:
        terminal = PtyCommand(*order(vendor, "--agent", "careful"))
        for _ in range(2):
            await terminal.expect("Allow? [y]es, [n]o: ")
            terminal.type_line("y")
        left = await terminal.result()

    assert (left.code, results(vendor)) == (0, ["push was called"] * 2)


async def test_always_applies_to_the_same_reason_only_and_escapes_are_decoded(folder: Path) -> None:
    (folder / "retinue.toml").write_text(LETS_SHELL_TRY)
    shell = ["--tools", "shell", "--agent", "bold", "--no-sandbox"]
    commands = (
        calls("shell", command="git init -q one"),
        calls("shell", command="git init -q two"),
        calls_verbatim("shell", r'{"command": "\u0072\u006d -r one"}'),
    )
    async with vendor_of(*commands) as vendor:
        terminal = PtyCommand(*order(vendor, *shell))
        await terminal.expect(ALWAYS.format("git init"))
        terminal.type_line("always")
        await terminal.expect("$ rm -r one")
        await terminal.expect(ALWAYS.format("rm -r"))
        terminal.type_line("n")
        left = await terminal.result()

    assert (left.code, left.terminal.count("[a]lways for shell")) == (0, 2)
    assert results(vendor) == ["[no output]", "[no output]", REFUSED]


@pytest.mark.parametrize("other", ["git clean -fdx", "mv a b", "git init two && git clean -f", "git -C . init two"])
async def test_always_for_a_command_holds_for_its_first_words_alone(folder: Path, other: str) -> None:
    (folder / "retinue.toml").write_text(LETS_SHELL_TRY.replace('"rm"', '"mv"'))
    shell = ["--tools", "shell", "--agent", "bold", "--no-sandbox"]
    commands = (calls("shell", command=line) for line in ("git init -q one", "git init -q two", other))
    async with vendor_of(*commands) as vendor:
        terminal = PtyCommand(*order(vendor, *shell))
        await terminal.expect(ALWAYS.format("git init"))
        terminal.type_line("a")
        await terminal.expect("Allow? ")
        terminal.type_line("n")
        left = await terminal.result()

    assert left.code == 0
    assert results(vendor) == ["[no output]", "[no output]", REFUSED]


async def test_always_for_a_program_that_runs_code_holds_for_the_same_line_alone(folder: Path) -> None:
    (folder / "retinue.toml").write_text(LETS_SHELL_TRY.replace('"rm"', '"sh"'))
    shell = ["--tools", "shell", "--agent", "bold", "--no-sandbox"]
    lines = ("sh -c 'echo 1'", "sh -c 'echo 1'", "sh -c 'rm mytools.py'")
    async with vendor_of(*(calls("shell", command=line) for line in lines)) as vendor:
        terminal = PtyCommand(*order(vendor, *shell))
        await terminal.expect(ALWAYS.format(lines[0]))
        terminal.type_line("a")
        await terminal.expect("rm mytools.py")
        await terminal.expect("Allow? ")
        terminal.type_line("n")
        await terminal.result()

    assert results(vendor) == ["1", "1", REFUSED]
    assert (folder / "mytools.py").exists()


async def test_always_holds_for_one_run_and_not_for_its_children(folder: Path) -> None:
    script = ChatScript().play(
        calls("deploy", version=1),
        calls("deploy", version=2),
        calls("subagent", label="dig", task_prompt="Below."),
        says("Done."),
    )
    script = script.play(calls("deploy", version=3), says("No."), says("No."), words="Below.")
    async with FakeChat(script) as vendor:
        flags = ["--base-url", vendor.base_url, "--model", "m", "--dialect", "xzatoma", "--tools", "deploy"]
        terminal = PtyCommand("run", *flags, "Deploy.")
        await terminal.expect(ASKED)
        terminal.type_line("a")
        await terminal.expect("(root/main/1) wants to call deploy")
        await terminal.expect(ASKED)
        terminal.type_line("n")
        left = await terminal.result()

    assert (left.code, deployed(), left.terminal.count(ASKED)) == (0, ["1", "2"], 2)


async def test_ctrl_c_at_a_prompt_leaves_the_question_open_for_resume() -> None:
    async with vendor_of(calls("deploy", version=2)) as vendor:
        terminal = PtyCommand(*order(vendor))
        await terminal.expect(ASKED)
        terminal.send_signal(signal.SIGINT)
        left = await terminal.result()
        (question,) = (await retinue("approvals", "--json")).json
        again = PtyCommand("runs", "resume", question["run_id"])
        await again.expect(ASKED)
        again.type_line("y")
        resumed = await again.result()

    assert (left.code, left.stdout) == (130, "")
    assert f"go on with: retinue runs resume {question['run_id']}" in left.terminal
    assert (resumed.code, resumed.stdout, deployed()) == (0, "Done.\n", ["2"])
    assert len(vendor.requests) == 2


async def test_end_of_input_at_a_prompt_leaves_the_question_open() -> None:
    async with vendor_of(calls("deploy", version=2)) as vendor:
        terminal = PtyCommand(*order(vendor))
        await terminal.expect(ASKED)
        terminal.type_line("\x04", end="")
        await terminal.expect("answer with: retinue approve ")
        (question,) = (await retinue("approvals", "--json")).json
        answered = await retinue("approve", question["id"])
        left = await terminal.result()

    assert (answered.code, left.code, left.stdout, deployed()) == (0, 0, "Done.\n", ["2"])


async def test_the_live_tree_is_hidden_during_a_prompt() -> None:
    async with vendor_of(calls("deploy", version=2)) as vendor:
        terminal = PtyCommand(*order(vendor), TERM="xterm-256color")
        await terminal.expect(ASKED)
        terminal.type_line("y")
        left = await terminal.result()

    assert (left.code, left.stdout, deployed()) == (0, "Done.\n", ["2"])
    assert "completed" in left.terminal


async def test_a_prompt_closes_when_the_question_is_answered_elsewhere() -> None:
    async with vendor_of(calls("deploy", version=2)) as vendor:
        terminal = PtyCommand(*order(vendor))
        await terminal.expect(ASKED)
        (question,) = (await retinue("approvals", "--json")).json
        answered = await retinue("approve", question["id"])
        await terminal.expect("answered elsewhere")
        left = await terminal.result()

    assert (answered.code, left.code, left.stdout, deployed()) == (0, 0, "Done.\n", ["2"])


# ---- without a terminal ---------------------------------------------------------------------------------------------


async def test_without_a_terminal_a_gated_call_is_refused_naming_the_setting() -> None:
    async with vendor_of(calls("deploy", version=2)) as vendor:
        ended = await retinue(*order(vendor))

    assert (ended.code, ended.stdout, deployed()) == (0, "Done.\n", [])
    (refusal,) = results(vendor)
    assert "require_approval_for_medium_risk" in refusal
    assert "--approvals" in refusal


async def test_yes_approves_calls_that_only_need_approval() -> None:
    async with vendor_of(calls("deploy", version=2)) as vendor:
        ended = await retinue(*order(vendor, "--yes"))

    assert (ended.code, deployed()) == (0, ["2"])


async def test_yes_does_not_override_a_policy(folder: Path) -> None:
    (folder / "retinue.toml").write_text(SETTINGS + 'level = "readonly"\n')
    async with vendor_of(calls("deploy", version=2)) as vendor:
        ended = await retinue(*order(vendor, "--yes", "--agent", "careful"))

    assert (ended.code, deployed()) == (0, [])
    assert results(vendor) == ["Security policy: read-only mode, cannot perform 'deploy'"]


@pytest.mark.parametrize(
    ("flags", "complaint"),
    [
        (["--approvals", "perhaps"], "expected one of: ask, wait, deny"),
        (["--approvals", "ask"], "needs a terminal"),
        (["--approvals", "wait", "--yes"], "--yes and --approvals exclude each other"),
        (["--approvals", "ask", "--detach"], "--detach and --approvals ask exclude each other"),
    ],
)
def test_contradictory_approval_flags_are_refused(cli: Cli, flags: list[str], complaint: str) -> None:
    ended = cli("run", *flags, "Deploy.")

    assert ended.code == 2
    assert complaint in ended.stderr


# ---- from another terminal ------------------------------------------------------------------------------------------


@pytest.mark.parametrize("allow", [True, False])
async def test_an_answer_from_another_terminal_continues_the_run(allow: bool) -> None:
    async with vendor_of(calls("deploy", version=2, words="secret")) as vendor:
        command = await Command.start(*order(vendor, "--approvals", "wait"))
        result = await command.expect_stderr("answer with: retinue approve ")
        name = result.split()[4]
        (question,) = (await retinue("approvals", "--json")).json
        listed = await retinue("approvals")
        answered = await retinue("approve" if allow else "deny", name, "--note", "as you like")
        ended = await command.ended()
        late = await retinue("approve", question["id"])

    run_id = question["run_id"]
    assert question == {
        "id": f"{run_id}/1/0",
        "run_id": run_id,
        "path": "root",
        "turn": 1,
        "index": 0,
        "tool": "deploy",
        "arguments": {"version": 2, "words": "secret"},
        "reason": "Security policy: 'deploy': this medium-risk call needs approval (require_approval_for_medium_risk)",
    }
    assert listed.stdout.splitlines()[1].split()[:3] == [question["id"], "root", "deploy"]
    approved = 'approved: root may call deploy\n  {"version":2,"words":"secret"}\n'
    assert answered.stderr == (approved if allow else "denied: root may not call deploy\n")
    assert (answered.code, ended.code, ended.stdout) == (0, 0, "Done.\n")
    assert "secret" not in ended.stderr  # stderr may be a log file
    assert (deployed(), results(vendor)) == (
        (["2"], ["version 2 is out"]) if allow else ([], [f"{REFUSED}: as you like"])
    )
    assert (late.code, late.stderr) == (2, f"error: unknown approval: '{question['id']}'\n")


async def test_a_question_survives_its_process_and_can_be_answered_before_resume() -> None:
    async with vendor_of(calls("deploy", version=2)) as vendor:
        command = await Command.start(*order(vendor, "--approvals", "wait"))
        await command.expect_stderr("answer with:")
        command.signal(signal.SIGKILL)
        await command.ended()
        (question,) = (await retinue("approvals", "--json")).json
        answered = await retinue("approve", question["run_id"][-8:])
        left = await retinue("approvals")
        resumed = await retinue("runs", "resume", question["run_id"])

    assert answered.code == 0
    assert answered.stderr.endswith(f"go on with: retinue runs resume {question['run_id']}\n")
    assert (left.code, left.stdout, left.stderr) == (0, "", "no calls wait for approval\n")
    assert (resumed.code, resumed.stdout, deployed()) == (0, "Done.\n", ["2"])
    assert len(vendor.requests) == 2


async def test_a_resumed_run_obeys_current_settings(folder: Path) -> None:
    async with vendor_of(calls("deploy", version=2)) as vendor:
        command = await Command.start(*order(vendor, "--approvals", "wait", "--agent", "careful"))
        await command.expect_stderr("answer with:")
        command.signal(signal.SIGINT)
        await command.ended()
        (question,) = (await retinue("approvals", "--json")).json
        (folder / "retinue.toml").write_text(SETTINGS + 'level = "readonly"\n')
        resumed = await retinue("runs", "resume", question["run_id"], "--yes", cwd=folder.parent)

    assert (resumed.code, resumed.stdout, deployed()) == (0, "Done.\n", [])
    assert results(vendor) == ["Security policy: read-only mode, cannot perform 'deploy'"]


async def test_delegation_of_a_resumed_run_obeys_current_settings(folder: Path) -> None:
    lines = (
        calls("deploy", version=1),
        calls("delegate", agent="gone", prompt="Go ahead."),
        calls("delegate", agent="free", prompt="Go ahead."),
        says("Done."),
    )
    script = ChatScript().play(*lines).play(calls("deploy", version=2), says("I could not."), words="Go ahead.")
    async with FakeChat(script) as vendor:
        flags = ["--approvals", "wait", "--agent", "front", "--dialect", "zeroclaw"]
        (folder / "retinue.toml").write_text(HANDS_OVER)
        given = ["--base-url", vendor.base_url, "--model", "m"]
        command = await Command.start("run", *given, *flags, "Deploy.")
        await command.expect_stderr("answer with:")
        command.signal(signal.SIGKILL)
        await command.ended()
        (question,) = (await retinue("approvals", "--json")).json
        (folder / "retinue.toml").write_text(
            HANDS_OVER.replace('ceiling = "target"', 'ceiling = "caller"').replace("enabled = true", "enabled = false")
        )
        await retinue("deny", question["id"])
        resumed = await retinue("runs", "resume", question["run_id"], "--approvals", "deny")

    assert (resumed.code, resumed.stdout, deployed()) == (0, "Done.\n", [])
    assert results(vendor)[1:] == [
        "Unknown agent 'gone'. Available agents: front, free",
        "[Agent 'free' (openai-chat/m)]\nI could not.",
    ]


@pytest.mark.parametrize(("flags", "is_fenced"), [((), True), (("--no-sandbox",), False)])
async def test_a_resumed_run_obeys_the_current_sandbox_setting(
    folder: Path, flags: tuple[str, ...], is_fenced: bool
) -> None:
    (folder.parent / "secret.txt").write_text("a secret")
    asks = '[agents.careful]\ntools = ["shell"]\nrisk_profile = "asks"\n[risk_profiles.asks]\nalways_ask = ["shell"]\n'
    (folder / "retinue.toml").write_text(f'[tools]\nsandbox = "off"\n{asks}')
    async with vendor_of(calls("shell", command="cat ../secret.txt")) as vendor:
        command = await Command.start(*order(vendor, "--approvals", "wait", "--agent", "careful", *flags))
        await command.expect_stderr("answer with:")
        command.signal(signal.SIGKILL)
        await command.ended()
        (question,) = (await retinue("approvals", "--json")).json
        (folder / "retinue.toml").write_text(asks)
        await retinue("runs", "resume", question["run_id"], "--yes")

    assert ("a secret" in results(vendor)[0]) is not is_fenced


def test_an_unknown_approval_id_is_bad_usage(cli: Cli) -> None:
    assert (cli("approve", "nonsense").code, cli("deny", "no/1/0").code) == (2, 2)
    assert cli("approvals", "--json").json == []
