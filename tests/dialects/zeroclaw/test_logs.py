"""Log lines of `zeroclaw`: the engine's lines have the fields of their run, and a target of `delegate` leaves lines."""

from __future__ import annotations

import logging
from collections.abc import Iterator

import pytest

import retinue
from retinue.core.log_context import set_payloads
from retinue.providers.scripted import calls, says, together
from tests.dialects.zeroclaw.harness import REVIEWER, ZeroclawHarness, delegate, look, spawn

FRONTLINE = retinue.Agent(name="frontline", system_prompt="You answer.", tools=("break_it", "look"))


@retinue.tool(kind="pure")
def break_it() -> str:
    """Break."""
    raise RuntimeError("broken\nFORGED")


@pytest.fixture(autouse=True)
def no_contents_in_later_tests() -> Iterator[None]:
    yield
    set_payloads(on=False)


def lines_of(caplog: pytest.LogCaptureFixture, name: str) -> list[str]:
    return [record.getMessage() for record in caplog.records if record.name == name]


@pytest.mark.promise("ZC-SPAN", "ZC-SESSION-KEY")
async def test_the_engines_lines_in_two_subagents_side_by_side_have_the_fields_of_each(
    caplog: pytest.LogCaptureFixture,
) -> None:
    caplog.set_level(logging.INFO, "retinue")
    harness = ZeroclawHarness(
        together(spawn("dig here"), spawn("dig there")),
        calls("break_it"),
        says("Thanks."),
        root="frontline",
        agents=(FRONTLINE,),
        tools=(look, break_it),
        tasks={
            ("frontline", "dig here"): [calls("break_it"), says("Broken.")],
            ("frontline", "dig there"): [calls("break_it"), says("Broken.")],
        },
    )
    await harness.play()

    keys = [f"subagent-{harness.row_of(task)}" for task in ("dig here", "dig there")]
    spans = [f"span=agent.frontline.subagent.{key.removeprefix('subagent-')} " for key in keys]
    said = f"tool break_it failed unexpectedly: RuntimeError at {__file__}:21"
    assert sorted(lines_of(caplog, "retinue.engine")) == sorted(
        [
            *(f"{span}agent_alias=frontline session_key={key} {said}" for span, key in zip(spans, keys, strict=True)),
            f"agent_alias=frontline session_key={harness.root_row.run_id} {said}",
        ]
    )


@pytest.mark.promise("ZC-DELEGATE-LINES")
async def test_a_target_without_tool_calls_leaves_lines_with_its_own_alias_and_session_key(
    caplog: pytest.LogCaptureFixture,
) -> None:
    caplog.set_level(logging.INFO, "retinue.zeroclaw")
    harness = ZeroclawHarness(
        delegate("reviewer", "review"),
        says("Thanks."),
        agents=(REVIEWER,),
        tasks={("reviewer", "review"): [says("SECRET")]},
    )
    await harness.play()

    root, target = harness.root_row.run_id, harness.row("reviewer").run_id
    assert lines_of(caplog, "retinue.zeroclaw") == [
        f"agent_alias=reviewer session_key={target} event=delegate_started parent={root}",
        f"agent_alias=reviewer session_key={target} event=delegate_ended status=completed reason=answered turns=1",
        f"agent_alias=main session_key={root} tool=delegate turn=1 status=ok",
    ]


async def test_contents_are_logged_once_if_the_environment_asks_for_them(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    caplog.set_level(logging.INFO, "retinue")
    monkeypatch.setenv("RETINUE_LOG_PAYLOADS", "1")
    harness = ZeroclawHarness(
        delegate("reviewer", "review"), says("Thanks."), tasks={("reviewer", "review"): [says("Fine.")]}
    )
    await harness.play()

    assert [line for line in lines_of(caplog, "retinue.zeroclaw") if '"review"' in line or "Fine." in line] == []
    contents = lines_of(caplog, "retinue.payloads")
    assert [line for line in contents if " event=accepted " in line][1].endswith(' task="review"')
    assert any('"text":"Fine."' in line for line in contents)
