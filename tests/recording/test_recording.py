"""Trees that are recorded once and played without a model: equal outcomes, and a diff for everything that changed."""

from __future__ import annotations

import asyncio
import base64
import re
import sys
import time
import tracemalloc
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
import pytest

import retinue
from retinue.core.errors import BadInput, ProviderError
from retinue.core.messages import AssistantMessage, Reply, UserMessage
from retinue.core.ports import Request
from retinue.core.usage import Usage
from retinue.providers.scripted import Line
from retinue.recording import player, read_recording
from retinue.recording.file import (
    RecordedFact,
    RecordedReply,
    RecordedRequest,
    RecordedTree,
    Recording,
    Scrubber,
    timeless,
)
from retinue.recording.player import Player
from retinue.testing import (
    ReplayDiffers,
    Script,
    ScriptedProvider,
    Trajectory,
    calls,
    fails,
    record,
    replay,
    says,
    together,
    trajectory_of,
)
from tests.cli.stage import retinue as command

pytestmark = pytest.mark.real_time

made: list[str] = []


@retinue.tool
def look(at: str) -> str:
    """Look at something."""
    made.append(at)
    return f"saw {at}"


DIG = retinue.Agent(name="dig", description="Digs.", system_prompt="You dig.", tools=("look",))


def options(agent: retinue.Agent = DIG, **more: Any) -> dict[str, Any]:
    return {"tools": [look, retinue.agent_tool(agent)], "dialects": ()} | more


def recorded(script: Script, **more: Any) -> dict[str, Any]:
    provider = ScriptedProvider(script, prices={"clay-1": (1_000, 2_000)}, latency=0.002)
    return options(**more) | {"model": "anthropic:clay-1", "providers": {"anthropic": provider}}


def crowd(size: int) -> Script:
    """A root that starts many children at once, each of which looks and answers."""
    script = Script().play("main", together(*(calls("dig", task=f"hole {n}") for n in range(size))), says("All dug."))
    return script.play("dig", calls("look", at="clay"), lambda ask: says(f"{ask.messages[0].text} has clay"))


async def test_a_tree_of_fifty_children_is_played_with_the_same_outcome(tmp_path: Path) -> None:
    file = tmp_path / "tree.jsonl"
    async with record(file, **recorded(crowd(50))) as r:
        first = await r.run("Dig.")
        did = await trajectory_of(r)
    made.clear()
    async with replay(file, **options()) as r:
        again = await r.run("Dig.")
        did_again = await trajectory_of(r)

    assert msgspec.json.encode(again) == msgspec.json.encode(first)
    assert did_again == did
    assert made == []  # the results of tools are played, too
    assert (len(did.delegations), did.turns, did.tools().count("look")) == (50, 102, 50)
    assert read_recording(file).outcome == first


REPLAY_ELSEWHERE = """
import asyncio, sys, time
import msgspec
import retinue
from retinue.testing import replay

@retinue.tool
def look(at: str) -> str:
    \"\"\"Look at something.\"\"\"
    sys.exit("a tool was called")

DIG = retinue.Agent(name="dig", description="Digs.", system_prompt="You dig.", tools=("look",))

async def main():
    begun = time.perf_counter()
    async with replay(sys.argv[1], tools=[look, retinue.agent_tool(DIG)], dialects=()) as r:
        outcome = await r.run("Dig.")
    print(f"{time.perf_counter() - begun:.3f}")
    print(msgspec.json.encode(outcome).decode())

asyncio.run(main())
"""


async def test_a_tree_of_fifty_children_is_played_in_an_empty_environment(tmp_path: Path) -> None:
    file = tmp_path / "tree.jsonl"
    async with record(file, **recorded(crowd(50))) as r:
        first = await r.run("Dig.")
    empty = tmp_path / "elsewhere"
    empty.mkdir()
    other = await asyncio.create_subprocess_exec(
        sys.executable, "-c", REPLAY_ELSEWHERE, str(file), cwd=empty, env={"HOME": str(empty)},
        stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.PIPE,
    )  # fmt: skip
    printed, problems = await other.communicate()
    took, _, outcome = printed.partition(b"\n")
    print(f"\nmeasured: a tree of 50 children is played in {took.decode()} s")

    assert (other.returncode, problems) == (0, b"")
    assert outcome.strip() == msgspec.json.encode(first)
    assert list(empty.iterdir()) == [], "nothing is kept, and no setting was needed"


async def test_a_recording_has_one_fact_for_each_line(tmp_path: Path) -> None:
    file = tmp_path / "tree.jsonl"
    async with record(file, **recorded(crowd(1))) as r:
        await r.run("Dig.")

    lines = [msgspec.json.decode(line) for line in file.read_text().splitlines()]
    assert [(line["line"], line.get("run"), line.get("turn")) for line in lines] == [
        ("tree", None, None),
        ("model", None, None),
        ("agent", None, None),
        ("agent", None, None),
        ("run", "root", None),
        ("request", "root", 1),
        ("reply", "root", 1),
        ("run", "root/dig/1", None),
        ("request", "root/dig/1", 1),
        ("reply", "root/dig/1", 1),
        ("result", "root/dig/1", 1),
        ("request", "root/dig/1", 2),
        ("reply", "root/dig/1", 2),
        ("end", "root/dig/1", None),
        ("result", "root", 1),
        ("request", "root", 2),
        ("reply", "root", 2),
        ("end", "root", None),
    ]
    assert not re.search(r"[0-9a-f]{8}-[0-9a-f]{4}-", file.read_text())


# ---- background work and ids ----------------------------------------------------------------------------------------


def told_ids(request: Request) -> list[str]:
    text = "\n".join(message.text for message in request.messages)
    return list(dict.fromkeys(re.findall(r"[0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12}", text)))


def background() -> Script:
    """A root that starts two runs in the background, does something else, and waits for both by their ids."""

    def wait(request: Request) -> Line:
        return calls("wait_agents", runs=told_ids(request))

    both = together(
        calls("run_agent", task="Dig left.", background=True), calls("run_agent", task="Dig right.", background=True)
    )
    script = Script().play("main", both, calls("look", at="sky"), wait, says("Both dug."))
    return script.play("general", calls("look", at="clay"), says("Clay."))


@pytest.mark.parametrize("slow", ["main", "general"])
async def test_background_runs_are_played_in_the_recorded_order(tmp_path: Path, slow: str) -> None:
    class Slow(ScriptedProvider):
        async def answer(self, request: Request, publish: Any) -> Reply:
            await asyncio.sleep(0.03 if request.agent == slow else 0.0)
            return await super().answer(request, publish)

    given: dict[str, Any] = {"tools": [look], "dialects": ["native"]}
    file = tmp_path / "tree.jsonl"
    async with record(file, model="anthropic:m", providers={"anthropic": Slow(background())}, **given) as r:
        first = await r.run("Dig.")
        did = await trajectory_of(r)
    for _ in range(3):
        async with replay(file, **given) as r:
            again = await r.run("Dig.")
            did_again = await trajectory_of(r)
        assert msgspec.json.encode(again) == msgspec.json.encode(first)
        assert did_again.tools() == did.tools()


# ---- differences ----------------------------------------------------------------------------------------------------


def same(given: dict[str, Any]) -> dict[str, Any]:
    return given


def changed_prompt(given: dict[str, Any]) -> dict[str, Any]:
    return given | options(msgspec.structs.replace(DIG, system_prompt="You dig deep."))


def changed_schema(given: dict[str, Any]) -> dict[str, Any]:
    @retinue.tool(name="look")
    def look_far(at: str, far: bool = False) -> str:
        """Look at something."""
        return at

    return given | {"tools": [look_far, retinue.agent_tool(DIG)]}


def changed_order(given: dict[str, Any]) -> dict[str, Any]:
    return given | {"tools": [retinue.agent_tool(DIG), look]}


DIFFERENCES: list[tuple[Callable[[dict[str, Any]], dict[str, Any]], str, str, list[str]]] = [
    (changed_prompt, "Dig.", "root/dig/1", ["system prompt (recorded)", "-You dig.", "+You dig deep."]),
    (changed_schema, "Dig.", "root", ["tools (recorded)", '+    "far": {']),
    (changed_order, "Dig.", "root", ["tools (recorded)", "+look: Look at something."]),
    (same, "Dig deeper.", "root", ["message 1 of 1 (recorded)", "-caller: Dig.", "+caller: Dig deeper."]),
]


@pytest.mark.parametrize(
    ("change", "task", "path", "shown"), DIFFERENCES, ids=lambda value: getattr(value, "__name__", "")
)
async def test_a_change_is_caught_with_a_diff_that_names_the_run(
    tmp_path: Path,
    change: Callable[[dict[str, Any]], dict[str, Any]],
    task: str,
    path: str,
    shown: list[str],
) -> None:
    file = tmp_path / "tree.jsonl"
    async with record(file, **recorded(crowd(2))) as r:
        await r.run("Dig.")
    with pytest.raises(ReplayDiffers) as failed:
        await play(file, task, **change(options()))

    assert failed.value.path in (path, "root/dig/2")  # of two children at the same turn, either may be first
    assert f"the request of {failed.value.path}, turn 1, differs from the recording" in str(failed.value)
    for text in shown:
        assert text in str(failed.value)


async def play(file: Path, *tasks: str, **given: Any) -> None:
    """Run these tasks with the models of a recording."""
    limits = {name: given.pop(name) for name in ("max_turns",) if name in given}
    async with replay(file, **given) as r:
        for task in tasks:
            await r.run(task, **limits)


async def test_a_tree_that_stops_early_or_asks_more_is_different(tmp_path: Path) -> None:
    file = tmp_path / "tree.jsonl"
    async with record(file, **recorded(Script().play("main", calls("look", at="sky"), says("Blue.")))) as r:
        await r.run("Look.")
    with pytest.raises(ReplayDiffers, match="the result of call 0 of root, turn 1 is recorded, and did not happen"):
        await play(file, "Look.", **options(), max_turns=1)
    with pytest.raises(ReplayDiffers, match="root asks a model for turn 1, which was played before"):
        await play(file, "Look.", "Look.", **options())
    with pytest.raises(ReplayDiffers, match="the request of root, turn 1 is recorded, and did not happen"):
        await play(file, **options())
    kept = [line for line in file.read_text().splitlines() if '"turn":2' not in line]
    file.write_text("\n".join(kept))
    with pytest.raises(ReplayDiffers, match="root asks a model for turn 2, which the recording does not have"):
        await play(file, "Look.", **options())


async def test_live_tools_are_called_and_their_results_compared(tmp_path: Path) -> None:
    file = tmp_path / "tree.jsonl"
    async with record(file, **recorded(Script().play("main", calls("look", at="sky"), says("Blue.")))) as r:
        await r.run("Look.")
    made.clear()
    async with replay(file, live_tools=True, **options()) as r:
        await r.run("Look.")
    assert made == ["sky"]

    @retinue.tool(name="look")
    def blind(at: str) -> str:
        """Look at something."""
        return "saw nothing"

    with pytest.raises(ReplayDiffers) as failed:
        await play(file, "Look.", live_tools=True, **options(tools=[blind, retinue.agent_tool(DIG)]))
    assert "-result of look: saw sky\n+result of look: saw nothing" in str(failed.value)


def edited(file: Path, change: Callable[[dict[str, Any]], bool]) -> None:
    """Write a recording with the lines that are left by `change`, which may change them, too."""
    lines = [msgspec.json.decode(line) for line in file.read_bytes().splitlines()]
    file.write_bytes(b"\n".join(msgspec.json.encode(line) for line in lines if change(line)))


def agree(question: retinue.Approval) -> bool:
    return True


@pytest.mark.parametrize("tool", ["file_write", "deploy"])
async def test_no_line_of_a_recording_makes_a_call_of_a_tool_that_starts_no_runs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, tool: str
) -> None:
    deployed: list[str] = []

    @retinue.tool(risk="high")
    def deploy(path: str, content: str) -> str:
        """Deploy."""
        deployed.append(path)
        return "deployed"

    def claim_that_it_starts_runs(line: dict[str, Any]) -> bool:
        if line["line"] == "result":
            line["live"] = True
        return True

    file, written = tmp_path / "tree.jsonl", tmp_path / "a.txt"
    worker = retinue.Agent(name="worker", tools=("file_write", "deploy"), workspace=str(tmp_path))
    given = options(
        tools=["file_write", deploy], agents=[worker], policy=retinue.Policy(block_high_risk_commands=False)
    )
    script = Script().play("worker", calls(tool, path="a.txt", content="x"), says("Done."))
    live: dict[str, Any] = {"model": "anthropic:m", "providers": {"anthropic": ScriptedProvider(script)}}
    live["approvals"] = agree
    async with record(file, **given, **live) as r:
        await r.run("Go.", agent="worker")
    assert (written.exists(), deployed) == ((True, []) if tool == "file_write" else (False, ["a.txt"]))
    written.unlink(missing_ok=True)
    deployed.clear()

    edited(file, claim_that_it_starts_runs)
    async with replay(file, **given) as r:
        await r.run("Go.", agent="worker")
    assert (written.exists(), deployed) == (False, [])

    edited(file, lambda line: line["line"] != "result")
    monkeypatch.setattr(player, "PATIENCE", 0.1)
    with pytest.raises(ReplayDiffers, match="The recording has no result of this call"):
        async with replay(file, **given, approvals=agree) as r:
            await r.run("Go.", agent="worker")
    assert (written.exists(), deployed) == (False, [])


async def test_failures_approvals_and_failed_attempts_are_played(tmp_path: Path) -> None:
    busy = ProviderError("busy", fault="overloaded", retry_after=0.0, usage=Usage(input=7, output=1), cost=9_000)
    broken = ProviderError("no such key", fault="auth", status=401)

    @retinue.tool(risk="medium")
    def deploy(target: str) -> str:
        """Deploy."""
        return f"deployed to {target}"

    def only_test(question: retinue.Approval) -> bool:
        return "test" in question.arguments

    script = Script().play(
        "main",
        together(calls("deploy", target="live"), calls("deploy", target="test"), calls("dig", task="x")),
        says("Done."),
    )
    script.play("dig", fails(busy, then=calls("look", at="x")), fails(broken))
    given = options(tools=[deploy, look, retinue.agent_tool(DIG)])
    file = tmp_path / "tree.jsonl"
    live = {"model": "anthropic:m", "providers": {"anthropic": ScriptedProvider(script)}}
    async with record(file, **given, **live, approvals=only_test) as r:
        first = await r.run("Go.")
        did = await trajectory_of(r)
    async with replay(file, **given) as r:
        again = await r.run("Go.")
        did_again = await trajectory_of(r)

    assert msgspec.json.encode(again) == msgspec.json.encode(first)
    assert did_again == did
    assert [(call.failed, call.text) for call in did.calls if call.tool == "deploy"] == [
        (True, "A person refused this call"),
        (False, "deployed to test"),
    ]
    assert did.usage.input > 7


# ---- secrets --------------------------------------------------------------------------------------------------------

HUSH = "hush-0123456789-abcdef"


async def test_secrets_are_not_in_the_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TEAM_API_KEY", HUSH)
    monkeypatch.setenv("HOME", str(tmp_path / "someone"))

    @retinue.tool
    def leak(at: str) -> str:
        """Leak."""
        coded = base64.b64encode(HUSH.encode()).decode()
        return f"{HUSH} {coded} sk-abcdefghijklmnopqrst https://me:pa55word@host/ {Path.home()}/notes {Path.cwd()}/x"

    script = Script().play("main", calls("leak", at=HUSH), lambda ask: says(ask.messages[-1].text))
    file = tmp_path / "tree.jsonl"
    live = {"model": "anthropic:m", "providers": {"anthropic": ScriptedProvider(script)}}
    async with record(file, tools=[leak], dialects=(), **live) as r:
        await r.run("Leak.")

    text = file.read_text()
    assert "hush-01" not in text
    assert "aHVzaC0wMTIz" not in text
    assert "sk-abc" not in text
    assert "pa55word" not in text
    assert str(tmp_path / "someone") not in text
    assert "[key] [key]g== [secret] https://[secret]@host/ <home>/notes <workspace>/x" in text
    monkeypatch.delenv("TEAM_API_KEY")
    async with replay(file, tools=[leak], dialects=()) as r:
        await r.run("Leak.")


def unchanged(scrubber: Scrubber, text: str) -> str:
    return text


async def test_a_file_with_a_secret_left_is_not_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TEAM_TOKEN", "open-sesame-0123")
    file = tmp_path / "tree.jsonl"
    provider = ScriptedProvider(Script().play("main", says("Hi.")))
    monkeypatch.setattr(Scrubber, "text", unchanged)
    with pytest.raises(BadInput, match="was not written: it would contain the value of TEAM_TOKEN"):
        async with record(file, model="anthropic:m", providers={"anthropic": provider}, dialects=()) as r:
            await r.run("Say open-sesame-0123.")
    assert not file.exists()


@pytest.mark.parametrize(
    "name", ["PGPASSWORD", "MYSQL_PWD", "OPENAI_APIKEY", "GH_PAT", "TEAM_KEYS", "DB_PASS", "SSHPASS", "SENTRY_DSN"]
)
def test_variables_with_usual_names_of_secrets_are_replaced(name: str) -> None:
    scrub = Scrubber({name: "hush-0123456789"})

    assert scrub.text("it is hush-0123456789") == "it is [key]"


def test_a_secret_is_replaced_where_it_is_written_as_json_in_a_text() -> None:
    secret = 'hu"sh\\0123456789\u00e9'
    scrub = Scrubber({"TEAM_PASSWORD": secret})

    assert "hu" not in scrub.text(msgspec.json.encode({"a": secret}).decode())
    assert scrub.find(msgspec.json.encode({"a": secret}).decode()) == "the value of TEAM_PASSWORD"


def token() -> str:
    parts = ('{"alg":"HS256"}', '{"sub":"1234567890"}', "signature of it")
    return ".".join(base64.urlsafe_b64encode(part.encode()).decode().rstrip("=") for part in parts)


@pytest.mark.parametrize("around", ["{}", "token={} ", '\\"a\\n{}\\n', "beginneyJ{}", "eyJeyJ.{}", "a.b.{}.c", "[{}]"])
def test_a_json_web_token_is_replaced_wherever_it_stands(around: str) -> None:
    text = around.format(token())
    scrubbed = Scrubber({}).text(text)

    assert token().split(".")[1] not in scrubbed
    assert "[secret]" in scrubbed
    assert scrubbed.startswith(around.partition("{")[0].partition("eyJ")[0])
    assert Scrubber({}).find(text) == "a text that looks like a key"
    assert Scrubber({}).find(scrubbed) is None


@pytest.mark.parametrize(
    "piece",
    [
        *("eyJ", "eyJaaaaaaaa.eyJ", "eyJaaaaaaaa.", ".eyJ", "eyJ.eyJaaaaaaaa.", "a.eyJaaaaaaaa.", "sk-", "://a:"),
        *("-----BEGIN PRIVATE KEY-----a", "bearer ", "github_pat_", "AKIA", "xoxb-"),
    ],
)
@pytest.mark.parametrize("before", ["", "eyJaaaaaaaa.eyJaaaaaaaa", "eyJ" * 10_000 + "aaaaaaaa.eyJ"])
def test_a_text_of_many_beginnings_of_secrets_is_read_in_proportion_to_its_length(piece: str, before: str) -> None:
    scrub = Scrubber({})

    def seconds(size: int) -> float:
        text = before * (size // 50_000) + piece * (size // len(piece))
        began = time.process_time()
        scrub.find(text)
        scrub.text(text)
        return time.process_time() - began

    # Sixteen times as much takes sixteen times as long, and 256 times if each beginning is read to the end.
    assert seconds(800_000) < 64 * max(0.002, min(seconds(50_000) for _ in range(3)))


def test_a_recording_of_a_long_run_is_read_in_proportion_to_its_length() -> None:
    def memory(turns: int) -> int:
        tree = RecordedTree(format=1, task="x", agent="", spec="a")
        facts: list[RecordedFact] = []
        for turn in range(turns):
            facts.append(RecordedRequest(run="main", turn=turn, spec="a", messages=(UserMessage("x"),)))
            facts.append(RecordedReply(run="main", turn=turn, reply=Reply(AssistantMessage("y"), Usage())))
        tracemalloc.start()
        player = Player(Recording(tree=tree, facts=tuple(facts)))
        used, _ = tracemalloc.get_traced_memory()
        tracemalloc.stop()
        assert player.differences == []
        return used

    assert memory(4000) < 8 * memory(1000)


def test_times_and_durations_are_not_compared() -> None:
    before = 'at 2026-11-18T19:00:01.5Z, {"duration_ms": 12, "seconds": 3.5}, took 3.2 s, on 2026-11-18'
    after = 'at 2027-01-02 03:04:05+01:00, {"duration_ms": 9000, "seconds": 1}, took 99 ms, on 2027-01-02'
    assert timeless(before) == timeless(after)
    assert timeless("3 seas, 42 and port 8080") == "3 seas, 42 and port 8080"


# ---- wrong use ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("", "not a recording: its first line is no tree"),
        ("{}", ":1: not a line of a recording"),
        ('{"line":"tree","x":' + "[" * 100_000, ":1: not a line of a recording"),
        (
            '{"line":"end","run":"root","outcome":{"result":"completed","reason":"answered"}}',
            "its first line is no tree",
        ),
        ('{"line":"tree","format":99,"task":"","agent":"","spec":""}', "has format 99; this retinue reads up to 1"),
        (
            '{"line":"tree","format":1,"task":"","agent":"","spec":"x"}\n{"line":"request","run":"root","turn":1,"spec":"x"}',
            "names the agent line 'x', which is not there",
        ),
    ],
)
async def test_a_file_that_is_no_recording_is_refused(tmp_path: Path, content: str, message: str) -> None:
    (tmp_path / "tree.jsonl").write_text(content)
    with pytest.raises(BadInput, match=message):
        read_recording(tmp_path / "tree.jsonl")
    with pytest.raises(BadInput, match="cannot be read: No such file"):
        read_recording(tmp_path / "missing.jsonl")


async def test_a_recording_has_exactly_one_ended_tree(tmp_path: Path) -> None:
    script = Script().play("main", says("Hi."))
    with pytest.raises(BadInput, match="0 root runs were started"):
        async with record(tmp_path / "a", **recorded(script)):
            pass
    with pytest.raises(BadInput, match="2 root runs were started"):
        async with record(tmp_path / "b", **recorded(script)) as r:
            await asyncio.gather(r.run("One."), r.run("Two."))
    async with record(tmp_path / "c", **recorded(script)) as r:
        await r.run("One.")
    with pytest.raises(BadInput, match="the models are those of the recording"):
        await play(tmp_path / "c", "One.", provider="anthropic")


# ---- trajectories ---------------------------------------------------------------------------------------------------


async def test_a_trajectory_has_the_calls_and_cost_of_each_agent(tmp_path: Path) -> None:
    async with record(tmp_path / "tree.jsonl", **recorded(crowd(2))) as r:
        await r.run("Dig.")
        did = await trajectory_of(r)

    did.assert_tools("look", "dig")
    did.assert_tools("look", "look", "dig", "dig", exactly=True)
    did.assert_tools("look", "look", agent="dig", exactly=True)
    did.assert_not_called("deploy")
    did.assert_delegated("main", "dig")
    did.assert_within(turns=6, calls=4, runs=2, tokens=did.usage.total, cost=0.01)
    assert did.delegations == (("main", "dig"), ("main", "dig"))
    wrong: list[tuple[Callable[[Trajectory], None], str]] = [
        (lambda t: t.assert_tools("dig", "look"), "expected the calls .* in this order"),
        (lambda t: t.assert_tools("look", exactly=True), "expected the calls"),
        (lambda t: t.assert_not_called("look"), "expected no call of look"),
        (lambda t: t.assert_delegated("dig", "main"), "expected dig to start main"),
        (lambda t: t.assert_within(turns=5), "expected at most 5 turns, found 6"),
        (lambda t: t.assert_within(cost=0.0), "expected a cost of at most 0.0 dollars"),
    ]
    for check, message in wrong:
        with pytest.raises(AssertionError, match=message):
            check(did)


async def test_a_trajectory_has_sender_and_receiver_of_messages(tmp_path: Path) -> None:
    is_digging, is_told = asyncio.Event(), asyncio.Event()

    @retinue.tool(kind="pure", timeout=None)
    async def dig() -> str:
        """Dig until told."""
        is_digging.set()
        await is_told.wait()
        return "dug"

    @retinue.tool
    async def until(what: str) -> str:
        """Wait until the other digs, or let it end."""
        if what == "told":
            is_told.set()
        await is_digging.wait()
        return what

    def tell(request: Request) -> Line:
        return calls("message_agent", run=told_ids(request)[0], text="Dig left, please.")

    script = Script().play(
        "main", calls("run_agent", agent="dig", task="Dig.", background=True), calls("until", what="digging"), tell,
        calls("until", what="told"), lambda request: calls("wait_agents", runs=told_ids(request)), says("Dug."),
    )  # fmt: skip
    script.play("dig", calls("dig"), says("Left it is."))
    agents = [retinue.Agent(name="dig", tools=("dig",))]
    given: dict[str, Any] = {"tools": [dig, until], "dialects": ["native"], "agents": agents}
    file = tmp_path / "tree.jsonl"
    async with record(file, model="anthropic:m", providers={"anthropic": ScriptedProvider(script)}, **given) as r:
        await r.run("Dig.")
        did = await trajectory_of(r)
    async with replay(file, **given) as r:
        await r.run("Dig.")
        did_again = await trajectory_of(r)

    assert [(each.by, each.to, each.path) for each in did.messages] == [("main", "dig", "root/dig/1")]
    did.assert_messaged("main", "dig")
    did.assert_messaged("main", "dig", "left")
    assert did_again.messages == did.messages
    for by, to, text in (("dig", "main", ""), ("", "dig", ""), ("main", "dig", "right")):
        with pytest.raises(AssertionError, match=f"expected a message of {by or 'the caller'} to {to}"):
            did.assert_messaged(by, to, text)


# ---- commands and the pytest plugin ---------------------------------------------------------------------------------


async def test_the_command_records_checks_and_exports(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("RETINUE_HOME", str(tmp_path / "home"))
    lines = {"main": [{"call": {"name": "run_agent", "arguments": {"task": "Dig."}}}, {"say": "Clay, it says."}]}
    (tmp_path / "lines.json").write_bytes(msgspec.json.encode(lines | {"general": [{"say": "Clay."}]}))
    flags = ("--provider", "scripted", "--model", "lines.json")
    kept = await command("record", "tree.jsonl", "--", "run", *flags, "--dialect", "native", "--quiet", "Lead.")
    (tmp_path / "lines.json").unlink()
    checked = await command("record", "--check", "tree.jsonl", "--", "run", "--dialect", "native", "--quiet", "Lead.")
    failed = await command("record", "--check", "tree.jsonl", "--", "run", "--dialect", "native", "--quiet", "Follow.")
    runs = (await command("runs", "--json")).json
    exported = await command("runs", "export", runs[-1]["run_id"], "--replayable", "-o", "again.jsonl")

    assert (kept.code, kept.stdout, kept.stderr) == (0, "Clay, it says.\n", "recorded 11 facts in tree.jsonl\n")
    assert (checked.code, checked.stdout) == (0, "Clay, it says.\n"), checked.stderr
    assert failed.code == 1
    assert "-caller: Lead.\n+caller: Follow.\n" in failed.stderr
    assert failed.stderr.endswith("error: the run did something else than tree.jsonl, first in root\n")
    assert (exported.code, exported.stderr) == (0, "wrote 11 facts to again.jsonl\n")
    facts = read_recording(tmp_path / "tree.jsonl").facts
    assert read_recording(tmp_path / "again.jsonl").facts == facts


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("record", "a.jsonl", "--", "chat"), "expected the command run after --, found 'chat'"),
        (("record", "a.jsonl", "--", "run", "--detach", "Go."), "leave out --detach"),
        (("record", "--check", "a.jsonl", "--", "run", "Go."), "the recording a.jsonl cannot be read"),
        (("runs", "export", "0badcafe", "--replayable"), "--replayable needs the file to write"),
    ],
)
async def test_wrong_arguments_are_bad_usage(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, arguments: tuple[str, ...], message: str
) -> None:
    monkeypatch.chdir(tmp_path)
    ended = await command(*arguments, env={"RETINUE_HOME": str(tmp_path / "home")})
    assert ended.code == 2
    assert message in ended.stderr


PROGRAM = """
import retinue as library
from retinue.testing import Script, ScriptedProvider, says, trajectory_of

MODEL = ScriptedProvider(Script().play("main", says("Forty-two.")))

async def test_it(retinue):
    async with retinue(provider=MODEL, model="m-1", dialects=()) as r:
        assert (await r.run("PROMPT")).text == "Forty-two."
        (await trajectory_of(r)).assert_within(turns=1)
    assert len(MODEL.asked) == ASKED

def test_plain(retinue):
    assert callable(retinue)
"""


async def test_the_plugin_records_and_plays(tmp_path: Path) -> None:
    async def run(*flags: str, prompt: str = "What is it?", asked: int = 0) -> tuple[int, str]:
        (tmp_path / "test_it.py").write_text(PROGRAM.replace("PROMPT", prompt).replace("ASKED", str(asked)))
        arguments = (sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider")
        process = await asyncio.create_subprocess_exec(
            *arguments, *flags, str(tmp_path / "test_it.py"), cwd=tmp_path, stdout=-1, stderr=-2
        )
        output, _ = await process.communicate()
        return process.returncode or 0, output.decode()

    missing, text = await run()
    assert missing == 1
    assert "make it with pytest --record=new" in text
    assert (await run("--record=new", asked=1))[0] == 0
    file = tmp_path / "recordings" / "test_it.test_it.jsonl"
    written = file.read_bytes()
    assert (await run("--record=new"))[0] == 0  # plays what is there
    assert (await run())[0] == 0
    assert file.read_bytes() == written
    different, text = await run(prompt="What was it?")
    assert different == 1
    assert "+caller: What was it?" in text
    assert (await run("--record=all", prompt="What was it?", asked=1))[0] == 0
    assert (await run(prompt="What was it?"))[0] == 0
