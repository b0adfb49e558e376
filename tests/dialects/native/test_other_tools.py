"""`wait_agents`, `message_agent`, `agent_result`, `cancel_agent` and `list_agents`."""

from typing import Any

import pytest

from retinue.core.agent import Agent
from retinue.core.events import CallReturned
from retinue.core.policy import Policy
from retinue.core.run import HistoryRef
from retinue.dialects.native.answers import PAGE
from retinue.providers.scripted import calls, hangs, says, together
from tests.dialects.native.harness import DIG, TASK, NativeHarness, about, run_agent, slowly, started, waits

ONE, TWO = "root/general/1", "root/general/2"


def background(*tasks: str) -> Any:
    return together(*(run_agent(task, background=True) for task in tasks))


def row(path: str, state: str = "completed", **more: str) -> dict[str, str]:
    return {"run": path, "state": state, **more}


# ---- wait_agents ----------------------------------------------------------------------------------------------------


@pytest.mark.promise("NA-WAIT-ALL")
async def test_all_answers_are_returned_in_the_order_of_the_call() -> None:
    harness = NativeHarness(
        background("a", "b"), waits(1, 0), says("Done."), tasks={"a": [slowly("A.", 9.0)], "b": [slowly("B.")]}
    )
    await harness.play()

    assert harness.answers()[2] == {"runs": [row(TWO, answer="B."), row(ONE, answer="A.")], "timed_out": False}


@pytest.mark.promise("NA-WAIT-ANY")
@pytest.mark.parametrize("until", ["any", 1, "1"])
async def test_a_wait_returns_when_enough_runs_have_ended(until: object) -> None:
    harness = NativeHarness(
        background("a", "b"),
        waits(until=until),
        waits(until=99),
        says("Done."),
        tasks={"a": [slowly("A.", 9.0)], "b": [slowly("B.")]},
    )
    await harness.play()

    _, _, first, second = harness.answers()
    assert first == {"runs": [row(ONE, "working"), row(TWO, answer="B.")], "timed_out": False}
    assert second == {"runs": [row(ONE, answer="A."), row(TWO, answer="B.")], "timed_out": False}


@pytest.mark.promise("NA-WAIT-TIMEOUT")
@pytest.mark.parametrize("seconds", [0, 7])
async def test_a_wait_ends_after_its_seconds(seconds: float) -> None:
    harness = NativeHarness(
        background("a", "b"),
        waits(seconds=seconds),
        waits(),
        says("Done."),
        tasks={"a": [slowly("A.", 20.0)], "b": [slowly("B.", 2.0)]},
    )
    await harness.play()

    states = ["working", "completed" if seconds else "working"]
    assert [run["state"] for run in harness.answers()[2]["runs"]] == states
    assert [answer["timed_out"] for answer in harness.answers()[2:]] == [True, False]


@pytest.mark.promise("NA-WAIT-ALL")
async def test_a_single_id_is_a_list_of_one() -> None:
    def line(request: Any) -> Any:
        return calls("wait_agents", runs=request.messages[-1].text.split('"')[3])

    harness = NativeHarness(background("a"), line, says("Done."), tasks={"a": [says("A.")]})
    await harness.play()

    assert harness.answers()[1] == {"runs": [row(ONE, answer="A.")], "timed_out": False}


# ---- message_agent --------------------------------------------------------------------------------------------------


@pytest.mark.promise("NA-MESSAGE")
async def test_a_working_run_reads_a_message_at_its_next_turn() -> None:
    harness = NativeHarness(
        background("a"),
        about("message_agent", text="Look at the pool."),
        waits(),
        says("Done."),
        tasks={"a": [slowly("Nothing yet."), says("Ten.")]},
    )
    await harness.play()

    assert harness.answers()[1:] == [
        row(ONE, "working"),
        {"runs": [row(ONE, answer="Ten.")], "timed_out": False},
    ]
    assert "Look at the pool." in harness.last(ONE)[-1]


@pytest.mark.promise("NA-MESSAGE-ENDED")
async def test_an_ended_run_goes_on_under_the_same_id() -> None:
    harness = NativeHarness(
        run_agent(tools=["grep"]),
        about("message_agent", text="Since when?"),
        waits(),
        about("message_agent", text="Sure?"),
        waits(),
        about("agent_result"),
        calls("list_agents"),
        says("Done."),
        tasks={DIG: [says("The pool.")], "Since when?": [slowly("Tuesday.")], "Sure?": [says("Yes.")]},
    )
    await harness.play()

    answers = harness.answers()
    assert answers[1] == row(ONE, "working")
    assert answers[2] == {"runs": [row(ONE, answer="Tuesday.")], "timed_out": False}
    assert answers[4] == {"runs": [row(ONE, answer="Yes.")], "timed_out": False}
    assert answers[5] == row(ONE, answer="Yes.") | {"page": 1, "pages": 1}
    assert answers[6]["runs"] == [{"run": ONE, "agent": "general", "task": DIG, "state": "completed"}]
    assert harness.last("root/general/3") == [
        f"user: {DIG}",
        "assistant: The pool.",
        "user: Since when?",
        "assistant: Tuesday.",
        "user: Sure?",
    ]
    assert harness.requests("root/general/3")[0].tools == ("grep",)
    assert not any("agent run" in line for line in harness.last())  # each end was read


@pytest.mark.promise("NA-MESSAGE-ENDED")
async def test_of_two_messages_to_an_ended_run_one_continues_it_and_the_other_follows() -> None:
    harness = NativeHarness(
        run_agent(),
        lambda request: together(
            *(calls("message_agent", run=started(request.messages)[0], text=text) for text in ("Since when?", "Why?"))
        ),
        waits(),
        says("Done."),
        tasks={DIG: [says("The pool.")], "Since when?": [says("Tuesday, a typo.")]},
    )
    await harness.play()

    assert [line.path for line in harness.rows()] == ["root", ONE, TWO]
    assert harness.answers()[-1]["runs"][0]["run"] == ONE


@pytest.mark.promise("NA-MESSAGE-ENDED")
async def test_the_end_of_a_continued_run_is_announced_under_the_same_id() -> None:
    harness = NativeHarness(
        run_agent(),
        about("message_agent", text="Since when?"),
        says("Meanwhile."),
        says("Done."),
        tasks={DIG: [says("The pool.")], "Since when?": [slowly("Tuesday.")]},
    )
    await harness.play()

    assert harness.last()[-1] == f"user: [agent run {ONE} completed] Task: Since when?\nTuesday."


@pytest.mark.promise("NA-MESSAGE-CANCELLED")
async def test_a_cancelled_run_takes_no_message() -> None:
    harness = NativeHarness(
        background("a"),
        about("cancel_agent"),
        about("message_agent", text="Go on."),
        says("Done."),
        tasks={"a": [hangs()]},
    )
    await harness.play()

    assert harness.answers()[2] == {
        "error": f"Run {ONE} was cancelled, which is final. Valid: a new run with run_agent."
    }


@pytest.mark.promise("NA-MESSAGE-RIGHTS")
async def test_a_run_that_goes_on_has_no_more_rights_than_before() -> None:
    reader = Agent(name="reader", tools=("grep",), policy=Policy(excluded_tools=("fetch",), max_actions_per_hour=3))
    harness = NativeHarness(
        run_agent(agent="reader"), about("message_agent", text="Sure?"), waits(), says("Done."), agents=[reader]
    )
    harness.script("reader", says("Ten."), task=DIG)
    harness.script("reader", says("Yes."), task="Sure?")
    await harness.play()

    first, second = map(harness.accepted, harness.rows()[1:])
    assert (second.policy, second.policy.max_actions_per_hour) == (first.policy, 3)
    assert second.windows == first.windows != ()


# ---- agent_result ---------------------------------------------------------------------------------------------------


@pytest.mark.promise("NA-PAGES", "NA-LONG")
async def test_a_long_answer_is_read_in_pages() -> None:
    text = "".join(f"{number}é\n" for number in range(8_000))
    assert 2 * PAGE < len(text) < 3 * PAGE + 1
    harness = NativeHarness(
        background("a"),
        waits(),
        *(about("agent_result", page=page) for page in (1, 2, 3, 4)),
        says("Done."),
        tasks={"a": [says(text)]},
    )
    await harness.play()

    _, waited, *pages, beyond = harness.answers()
    assert "".join(page.pop("answer") for page in pages) == text
    assert pages == [row(ONE) | {"page": page, "pages": 3} for page in (1, 2, 3)]
    assert beyond == {"error": "Page 4 does not exist. Valid: 1 to 3."}
    assert waited["runs"][0]["answer"] == text[:PAGE]
    assert waited["runs"][0]["next"] == (
        f'The answer has 3 pages: call agent_result with {{"run":"{ONE}","page":2}} for the next one.'
    )


@pytest.mark.promise("NA-LONG")
async def test_run_agent_and_a_notice_have_the_first_page() -> None:
    text = "x" * (PAGE + 1)
    harness = NativeHarness(
        run_agent("a"),
        run_agent("b", background=True),
        says("Meanwhile."),
        says("Done."),
        tasks={"a": [says(text)], "b": [slowly(text)]},
    )
    await harness.play()

    first = harness.answers()[0]
    assert (first["answer"], "agent_result" in first["next"]) == (text[:PAGE], True)
    assert harness.last()[-1].endswith(
        f'x\n[truncated after {PAGE} characters: call agent_result with {{"run":"{TWO}","page":2}}]'
    )


@pytest.mark.promise("NA-RESULT-WORKING")
async def test_a_working_run_has_no_answer() -> None:
    harness = NativeHarness(
        background("a"), about("agent_result"), about("cancel_agent"), says("Done."), tasks={"a": [hangs("Ten")]}
    )
    await harness.play()

    assert harness.answers()[1] == row(ONE, "working") | {"page": 1, "pages": 1}


# ---- cancel_agent and list_agents -----------------------------------------------------------------------------------


@pytest.mark.promise("NA-CANCEL", "NA-PARTIAL")
async def test_a_cancelled_run_has_ended_and_keeps_its_text() -> None:
    harness = NativeHarness(
        background("a"),
        waits(seconds=3),
        about("cancel_agent"),
        about("agent_result"),
        says("Done."),
        tasks={"a": [together(says("Ten, I think."), calls("grep")), hangs()]},
    )
    await harness.play()

    assert harness.answers()[2:] == [
        row(ONE, "cancelled"),
        row(ONE, "cancelled", answer="Ten, I think.", error="cancelled by main") | {"page": 1, "pages": 1},
    ]
    assert len(harness.last()) == 9  # no message about an end that the caller caused


@pytest.mark.promise("NA-CANCEL-ENDED")
async def test_an_ended_run_is_not_cancelled() -> None:
    harness = NativeHarness(run_agent(), about("cancel_agent"), says("Done."), tasks={DIG: [says("Ten.")]})
    await harness.play()

    assert harness.answers()[1] == row(ONE, "completed")


@pytest.mark.promise("NA-LIST")
async def test_agents_and_runs_are_listed_newest_first() -> None:
    agents = [Agent(name="reader", description="Reads logs"), Agent(name="writer")]
    harness = NativeHarness(
        run_agent("x" * 500),
        background("b"),
        calls("list_agents"),
        waits(1),
        says("Done."),
        agents=agents,
        tasks={"x": [says("A.")], "b": [slowly("B.")]},
    )
    await harness.play()

    assert harness.answers()[2] == {
        "agents": [{"name": "reader", "description": "Reads logs"}, {"name": "writer", "description": ""}],
        "runs": [
            {"run": TWO, "agent": "general", "task": "b", "state": "working"},
            {"run": ONE, "agent": "general", "task": "x" * 200, "state": "completed"},
        ],
    }


@pytest.mark.promise("NA-LIST", "NA-BARE")
async def test_without_agents_and_runs_the_lists_are_empty() -> None:
    harness = NativeHarness(calls("list_agents"), says("Done."), tools=())
    await harness.play()

    assert harness.answers() == [{"agents": [], "runs": []}]


# ---- the runs of a caller -------------------------------------------------------------------------------------------


@pytest.mark.promise("NA-OWN-RUNS", "NA-UNKNOWN-RUN")
async def test_no_caller_reaches_the_runs_of_another_tree() -> None:
    harness = NativeHarness(run_agent(), says("Done."), tasks={DIG: [says("Ten.")]}, agents=[Agent(name="spy")])
    async with harness:
        await harness.run(TASK)
        (root, child) = harness.rows()
        others = [child.run_id, root.run_id, "nonsense"]
        harness.script(
            "spy",
            together(
                *(calls(tool, run=run_id) for tool in ("agent_result", "cancel_agent") for run_id in others),
                *(calls("wait_agents", runs=[run_id]) for run_id in others),
                *(calls("message_agent", run=run_id, text="Tell me.") for run_id in others),
                calls("list_agents"),
            ),
            says("Nothing."),
        )
        await harness.retinue.run(TASK, agent="spy")
        results = harness.results("spy")

    *refusals, listed = results
    assert refusals == [f'{{"error":"Unknown run {run_id!r}. Valid: (none)."}}' for run_id in others * 4]
    assert listed == '{"agents":[{"name":"spy","description":""}],"runs":[]}'


@pytest.mark.promise("NA-UNKNOWN-RUN")
async def test_an_unknown_run_is_refused_with_the_known_ones() -> None:
    harness = NativeHarness(run_agent(), calls("agent_result", run="r9"), says("Done."), tasks={DIG: [says("Ten.")]})
    await harness.play()

    assert harness.answers()[1] == {"error": f"Unknown run 'r9'. Valid: {ONE}."}
    assert harness.returned()[1].failed


@pytest.mark.promise("NA-OWN-RUNS")
async def test_a_chat_reaches_the_runs_of_its_earlier_inputs() -> None:
    harness = NativeHarness(run_agent(), says("Done."), tasks={DIG: [says("Ten.")]})
    async with harness:
        first = await harness.retinue.spawn(TASK, label="chat")
        await first.wait()
        run = await harness.retinue.supervisor.replay(first.run_id)
        child = harness.row(ONE).run_id
        harness.script("main", calls("agent_result", run=child), says("Ten."), task="Again?")
        second = await harness.retinue.spawn("Again?", label="chat", inherits=HistoryRef(run.run_id, run.seq))
        await second.wait()
        results = [event.text for event in harness.events(second.run_id) if isinstance(event, CallReturned)]

    assert results == [f'{{"run":"{child}","state":"completed","answer":"Ten.","page":1,"pages":1}}']
