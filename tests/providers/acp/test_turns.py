"""A run whose model is an agent program: turns, calls, permissions, costs, follow-ups and what the program is sent."""

import asyncio
from pathlib import Path
from typing import Any

import pytest

import retinue
from retinue import Image, Limits, Policy
from retinue.core.events import CallParked, ReplyReceived, RunEnded
from retinue.core.messages import Delta, TextDelta
from retinue.core.run import Approval
from retinue.core.usage import Usage
from retinue.providers.catalog import provider_config
from retinue.testing import Script, ScriptedProvider, calls, says
from tests.providers.acp.harness import SUPERVISED, Scene, calls_of, question

pytestmark = pytest.mark.real_time  # child processes


@pytest.fixture
def scene(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Scene:
    monkeypatch.chdir(tmp_path)
    return Scene(tmp_path)


async def test_turns_calls_and_costs_of_an_agent_are_those_of_the_run(scene: Scene) -> None:
    turn = [
        ["say", "Looking. "],
        ["think", "hm"],
        ["do", "1", "read pool.toml", "read", "size = 10"],
        ["cost", 0.10],
        ["ask", "2", "pool.toml", "edit"],
        ["say", "Fixed."],
        ["cost", 0.25],
        ["usage"],
    ]
    async with scene.open(turn) as r:
        run = await r.spawn("Fix the pool.")
        events = [event async for event in run.events()]
        outcome = await run.wait()

    texts = [event.reply.message.text for event in events if isinstance(event, ReplyReceived)]
    costs = [event.reply.cost for event in events if isinstance(event, ReplyReceived)]
    assert texts == ["Looking. ", "", "Fixed."]
    assert (outcome.ok, outcome.text, outcome.turns, outcome.usage) == (True, "Fixed.", 3, Usage(input=20, output=10))
    assert (costs[0] in (0, 100_000_000), sum(cost or 0 for cost in costs), outcome.cost) == (
        True,
        250_000_000,
        250_000_000,
    )
    assert calls_of([event for event in events if not isinstance(event, Delta)]) == [
        ("acp_read", {"title": "read pool.toml", "call": "1", "input": {"x": 1}}, "size = 10", False),
        (
            "acp_edit",
            {
                "title": "pool.toml",
                "call": "2",
                "asks": True,
                "changes": [{"path": "pool.toml", "old": "a", "new": "b"}],
            },
            "done pool.toml",
            False,
        ),
    ]
    assert "".join(event.text for event in events if isinstance(event, TextDelta)) == "Looking. Fixed."
    assert scene.sent("session/new") == [{"cwd": str(Path.cwd()), "mcpServers": []}]


async def test_a_person_decides_about_what_an_agent_asks_for(scene: Scene) -> None:
    asked: list[Approval] = []

    def decide(question: Approval) -> bool:
        asked.append(question)
        return question.tool == "acp_edit"

    turn = [["ask", "1", "a.txt", "edit"], ["ask", "2", "rm -rf /", "execute"], ["say", "Done."]]
    async with scene.open(turn, policy=SUPERVISED, approvals=decide) as r:
        run = await r.spawn("Clean up.")
        events = [event async for event in run.events()]
        outcome = await run.wait()

    assert [(each.tool, "rm -rf /" in each.arguments) for each in asked] == [("acp_edit", False), ("acp_execute", True)]
    assert sum(isinstance(event, CallParked) for event in events) == 2
    assert [
        (name, text, failed) for name, _, text, failed in calls_of([e for e in events if not isinstance(e, Delta)])
    ] == [
        ("acp_edit", "done a.txt", False),
        ("acp_execute", "A person refused this call", True),
    ]
    assert outcome.text == "(no) Done."


async def test_a_call_that_needs_approval_is_refused_without_an_approver(scene: Scene) -> None:
    async with scene.open([["ask", "1", "a.txt", "edit"], ["say", "Then not."]], policy=SUPERVISED) as r:
        assert (await r.run("Write.")).text == "(no) Then not."


async def test_reading_needs_no_person(scene: Scene) -> None:
    async with scene.open([["ask", "1", "a.txt", "read"], ["say", "Read."]], policy=SUPERVISED) as r:
        assert (await r.run("Read.")).text == "Read."


@pytest.mark.parametrize("policy", [Policy(autonomy="readonly"), Policy(excluded_tools=("acp_edit",))])  # pyright: ignore[reportArgumentType]
async def test_an_agent_that_does_without_asking_what_it_may_not_is_stopped(scene: Scene, policy: Policy) -> None:
    turn = [["say", "Well. "], ["do", "1", "overwrite", "edit", "done"], ["say", "Done."]]
    async with scene.open(turn, policy=policy) as r:
        outcome = await r.run("Look around.")

    text = "helper was stopped: it made a call that it may not make, without asking: overwrite"
    assert (outcome.result, outcome.reason, outcome.error) == ("failed", "model_error", text)
    assert outcome.text.startswith("Well. ")


async def test_two_questions_at_once_are_both_answered(scene: Scene) -> None:
    both = "\n".join([question(1), question(2)])
    async with scene.open([["raw", both], ["ask", "3", "c.txt", "edit"], ["say", "All."]]) as r:
        outcome = await r.run("Go.")

    answers = {each["id"]: each["result"]["outcome"] for each in scene.messages() if "result" in each}
    assert answers == {id: {"outcome": "selected", "optionId": "yes"} for id in (1, 2, 101)}
    assert outcome.text == "All."


async def test_a_permission_is_never_given_for_all_later_calls(scene: Scene) -> None:
    async with scene.open(
        [["raw", question(1, option="ever", kind="allow_always")], ["ask", "2", "c.txt", "read"], ["say", "All."]]
    ) as r:
        await r.run("Go.")

    assert {"outcome": {"outcome": "cancelled"}} in [each.get("result") for each in scene.messages()]


async def test_follow_ups_go_to_the_same_session(scene: Scene) -> None:
    async with scene.open([["say", "One."]], [["echo"]]) as r:
        run = await r.spawn("First.", keep_alive=True)
        second = await run.ask("Second.")
        await run.close()

    assert scene.prompts() == ["First.", "Second."]
    assert second.text == "Second."
    assert len(scene.sent("session/new")) == 1


async def test_the_last_turn_is_an_answer_without_calls(scene: Scene) -> None:
    turn = [["ask", str(number), f"step {number}", "read"] for number in range(5)]
    async with scene.open([*turn, ["wait"]], [["say", "So far: nothing."]]) as r:
        outcome = await r.run("Go.", limits=Limits(max_turns=3, wrap_up=True))

    assert (outcome.result, outcome.reason, outcome.text) == ("exhausted", "max_turns", "So far: nothing.")
    assert "You have reached the" in scene.prompts()[1]


async def test_a_limit_on_cost_ends_the_run(scene: Scene) -> None:
    turn = [["cost", 0.50], ["ask", "1", "a.txt", "read"], ["wait"]]
    async with scene.open(turn) as r:
        outcome = await r.run("Go.", max_cost=0.25)

    assert (outcome.result, outcome.reason, outcome.cost) == ("exhausted", "max_cost", 500_000_000)


async def test_instructions_and_the_conversation_so_far_come_first(scene: Scene) -> None:
    async with scene.open([["say", "Blue."]], abilities={"loadSession": False}) as r:
        run = await r.spawn("What is the colour?", system="You are short.")
        await run.wait()
        scene.environment([["say", "Navy."]])
        fork = await r.fork(run.run_id, "Which one?")
        await fork.wait()

    first, second = scene.prompts()
    assert first == "You are short.|What is the colour?"
    assert second == (
        "You are short.\n\nThe conversation so far, in which you continue as the assistant:\n\n"
        "User: What is the colour?\n\nAssistant: Blue.|Which one?"
    )


@pytest.mark.parametrize("task", ["/yolo now", "  !rm x", "$skill", "@secret", "#note", "\ufeff/yolo"])
async def test_a_task_is_no_command_of_the_agents_user(scene: Scene, task: str) -> None:
    async with scene.open([["say", "Ok."]]) as r:
        await r.run(task)

    assert scene.prompts() == [f"Task: {task}"]


async def test_instructions_that_a_model_wrote_are_no_command_of_the_agents_user(scene: Scene) -> None:
    async with scene.open([["say", "Ok."]]) as r:
        await r.run("Begin.", system="!rm x")

    assert scene.prompts() == ["Instructions: !rm x|Begin."]


async def test_a_question_that_waits_does_not_become_one_about_something_else(scene: Scene) -> None:
    first = question(1)
    other = first.replace('"id": 1', '"id": 2').replace('"t1"', '"rm -r ."')
    turn = [["raw", f"{first}\n{other}"], ["ask", "3", "c.txt", "edit"], ["say", "All."]]

    def answers() -> dict[int, str]:
        return {each["id"]: each["result"]["outcome"]["outcome"] for each in scene.messages() if "result" in each}

    async def allow_in_turn(asked: Approval) -> bool:
        """The first after the answer to the second, and the third after that to the first."""
        before = 1 if "c.txt" in asked.arguments else 2
        for _ in range(1200):
            if before in answers():
                return True
            await asyncio.sleep(0.05)
        return False

    async with scene.open(turn, policy=SUPERVISED, approvals=allow_in_turn) as r:
        await r.run("Go.")

    assert (answers()[1], answers()[2]) == ("selected", "cancelled")


async def test_images_go_to_agents_that_take_them(scene: Scene) -> None:
    picture = Image(b"\x89PNG....", name="a.png")
    async with scene.open([["echo"]], abilities={"promptCapabilities": {"image": True}}) as r:
        taken = await r.run("Look.", attachments=[picture])
    async with scene.open([["echo"]]) as r:
        refused = await r.run("Look.", attachments=[picture])

    assert taken.text == "Look.|image"
    assert "helper does not take a.png (image/png)" in refused.error


@pytest.mark.parametrize(("model", "chosen"), [("m1", ["m1"]), ("default", [])])
async def test_a_model_is_chosen_among_those_of_the_agent(scene: Scene, model: str, chosen: list[str]) -> None:
    async with scene.open([["say", "Ok."]]) as r:
        await r.run("Go.", model=f"helper:{model}")

    assert [each["modelId"] for each in scene.sent("session/set_model")] == chosen


async def test_an_unknown_model_is_refused_with_those_that_there_are(scene: Scene) -> None:
    async with scene.open([["say", "Ok."]]) as r:
        outcome = await r.run("Go.", model="helper:m9")

    assert "helper has no model 'm9'; it has: m1" in outcome.error


async def test_an_agent_is_a_child_like_any_other(scene: Scene) -> None:
    script = Script().play("main", calls("run_agent", task="Look.", model="helper:default"), says("Thanks."))
    scene.environment([["do", "1", "read x", "read", "42"], ["say", "It is 42."]])
    config = provider_config("helper", wire="acp", program=scene.program())
    async with retinue.open(
        provider=ScriptedProvider(script), provider_configs=[config], dialects=["native"], home=retinue.MEMORY
    ) as r:
        run = await r.spawn("Go.")
        rows: list[Any] = [each.event async for each in r.events(run, tree=True) if each.path != "root"]
        outcome = await run.wait()
        views = await r.tree(run.run_id)

    assert outcome.text == "Thanks."
    ended = next(each for each in rows if isinstance(each, RunEnded))
    assert (ended.outcome.text, ended.outcome.turns) == ("It is 42.", 2)
    assert sorted((view.depth, view.outcome is not None) for view in views) == [(0, True), (1, True)]
