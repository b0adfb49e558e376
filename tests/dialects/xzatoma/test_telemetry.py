"""The six log lines of `xzatoma` and its metrics."""

import logging
from collections import Counter
from collections.abc import Iterator

import pytest

from retinue.core.errors import ProviderError, TooManyRunning
from retinue.core.usage import Usage
from retinue.dialects.xzatoma.child import TARGET
from retinue.dialects.xzatoma.settings import XzatomaSettings
from retinue.engine import StartedRun
from retinue.providers import scripted
from retinue.providers.scripted import calls_verbatim, fails, together
from tests.dialects.xzatoma.harness import TASK, XzatomaHarness, refused, says, subagent, uses

FOUND = (says("It is the pool."), says("The pool is too small."))


@pytest.fixture
def told(caplog: pytest.LogCaptureFixture) -> Iterator[pytest.LogCaptureFixture]:
    """What the dialect's logger says, at any level."""
    with caplog.at_level(logging.DEBUG, TARGET):
        yield caplog


def lines(told: pytest.LogCaptureFixture) -> list[str]:
    return [f"{each.levelname} {each.getMessage()}" for each in told.records if each.name == TARGET]


class Counting:
    """A meter that can be looked at; measured seconds are rounded away."""

    def __init__(self) -> None:
        self.counted: Counter[str] = Counter()
        self.active: Counter[str] = Counter()
        self.measured: list[tuple[str, float]] = []

    def count(self, name: str, **attributes: str) -> None:
        self.counted[_named(name, attributes)] += 1

    def move(self, name: str, change: int, **attributes: str) -> None:
        self.active[_named(name, attributes)] += change

    def measure(self, name: str, value: float, **attributes: str) -> None:
        self.measured.append((_named(name, attributes), value))


def _named(name: str, attributes: dict[str, str]) -> str:
    return name + "".join(f" {key}={value}" for key, value in attributes.items())


@pytest.fixture
def meter(monkeypatch: pytest.MonkeyPatch) -> Counting:
    counting = Counting()

    def meter_of(*_: object) -> Counting:
        return counting

    monkeypatch.setattr("retinue.telemetry.exporters.meter", meter_of)
    return counting


@pytest.mark.promise("XZ-TELEMETRY", "XZ-TELEMETRY-SPAWN", "XZ-TELEMETRY-COMPLETE")
async def test_start_and_completion_of_a_subagent_are_logged(told: pytest.LogCaptureFixture) -> None:
    played = [
        scripted.says("It is the pool.", usage=Usage(input=1500, output=100)),
        scripted.says("Too small.", usage=Usage(input=1500, output=100)),
    ]
    call = subagent("research_quantum", max_turns=8, allowed_tools=["grep", "fetch"])
    await XzatomaHarness(call, says("ok"), tasks={"find it": played}).play()

    assert lines(told) == [
        "INFO subagent.event=spawn subagent.label=research_quantum subagent.depth=1 subagent.max_turns=8 "
        'subagent.allowed_tools=["fetch","grep"] Spawning subagent',
        "INFO subagent.event=complete subagent.label=research_quantum subagent.depth=1 subagent.turns_used=2 "
        "subagent.tokens_consumed=3200 subagent.status=complete Subagent completed",
    ]


@pytest.mark.promise("XZ-TELEMETRY-MAX-TURNS", "XZ-TELEMETRY-TRUNCATION", "XZ-TELEMETRY-COMPLETE")
async def test_limits_that_are_met_are_warned_of(told: pytest.LogCaptureFixture) -> None:
    harness = XzatomaHarness(
        subagent("research_quantum", max_turns=1),
        says("ok"),
        tasks={"find it": [uses("grep"), says("x" + "é" * 1000)]},
        settings=XzatomaSettings(output_max_size=1024),
    )
    await harness.play()

    assert lines(told)[1:] == [
        "WARNING subagent.event=max_turns_exceeded subagent.label=research_quantum subagent.depth=1 "
        "subagent.max_turns=1 Subagent exceeded max turns",
        "WARNING subagent.event=truncation subagent.label=research_quantum subagent.original_size=2001 "
        "subagent.truncated_size=1023 Subagent output truncated",
        "INFO subagent.event=complete subagent.label=research_quantum subagent.depth=1 subagent.turns_used=2 "
        "subagent.tokens_consumed=0 subagent.status=incomplete Subagent completed",
    ]


@pytest.mark.promise("XZ-TELEMETRY-ERROR", "XZ-TELEMETRY")
async def test_a_failure_is_logged_with_its_reason(told: pytest.LogCaptureFixture) -> None:
    broken = fails(ProviderError('no such model: "m"\nINFO forged', fault="bad_request"))
    await XzatomaHarness(subagent("two words"), says("ok"), tasks={"find it": [broken]}).play()

    assert lines(told)[1:] == [
        'ERROR subagent.event=error subagent.label="two words" subagent.depth=1 '
        'subagent.error="no such model: \\"m\\"\\nINFO forged" Subagent execution failed'
    ]


@pytest.mark.promise("XZ-TELEMETRY-DEPTH")
@pytest.mark.parametrize(
    ("arguments", "label"), [('{"label": "research_quantum"}', "research_quantum"), ("[]", "unknown")]
)
async def test_a_depth_refusal_is_logged(told: pytest.LogCaptureFixture, arguments: str, label: str) -> None:
    harness = XzatomaHarness(
        subagent(),
        says("ok"),
        tasks={"find it": [calls_verbatim("subagent", arguments), *FOUND]},
        settings=XzatomaSettings(max_depth=1),
    )
    await harness.play()

    assert lines(told)[1] == (
        f"DEBUG subagent.event=depth_limit subagent.label={label} subagent.current_depth=1 subagent.max_depth=1 "
        "Subagent recursion depth limit enforced"
    )


@pytest.mark.promise("XZ-TELEMETRY-REFUSALS")
async def test_a_call_that_makes_no_sense_is_no_failure_of_a_subagent(told: pytest.LogCaptureFixture) -> None:
    nonsense = [subagent(""), subagent(task_prompt=" "), subagent(max_turns=51), subagent(allowed_tools=["nope"])]
    await XzatomaHarness(together(*nonsense), says("ok")).play()

    assert lines(told) == []


@pytest.mark.promise("XZ-TELEMETRY-OFF")
async def test_telemetry_can_be_switched_off(told: pytest.LogCaptureFixture, meter: Counting) -> None:
    broken = fails(ProviderError("gone", fault="bad_request"))
    harness = XzatomaHarness(
        together(subagent(), subagent("other", "find more")),
        says("ok"),
        tasks={"find it": [broken], "find more": FOUND},
        settings=XzatomaSettings(telemetry_enabled=False),
    )
    await harness.play()

    assert (lines(told), meter.counted, meter.measured) == ([], Counter(), [])


@pytest.mark.promise("XZ-TELEMETRY-SPAWN")
async def test_a_nested_subagent_is_logged_with_its_own_depth(told: pytest.LogCaptureFixture) -> None:
    harness = XzatomaHarness(
        subagent(), says("ok"), tasks={"find it": [subagent("below", "look below"), *FOUND], "look below": FOUND}
    )
    await harness.play()

    depths = [line.split()[1:4] for line in lines(told)]
    assert depths == [
        ["subagent.event=spawn", "subagent.label=dig", "subagent.depth=1"],
        ["subagent.event=spawn", "subagent.label=below", "subagent.depth=2"],
        ["subagent.event=complete", "subagent.label=below", "subagent.depth=2"],
        ["subagent.event=complete", "subagent.label=dig", "subagent.depth=1"],
    ]


@pytest.mark.promise("XZ-FAILURE", "XZ-TELEMETRY-ERROR", "XZ-METRICS")
async def test_a_subagent_that_cannot_be_started_has_failed(
    told: pytest.LogCaptureFixture, meter: Counting, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def refuse(*_: object, **__: object) -> StartedRun:
        raise TooManyRunning(running=5, limit=5)

    harness = XzatomaHarness(subagent(), says("ok"))
    async with harness:
        root = await harness.retinue.spawn(TASK)
        monkeypatch.setattr(harness.retinue.supervisor, "spawn", refuse)
        await root.wait()

    assert harness.answers() == [refused("Subagent execution failed: 5 runs are running already; the limit is 5")]
    assert lines(told) == [
        "ERROR subagent.event=error subagent.label=dig subagent.depth=1 "
        'subagent.error="5 runs are running already; the limit is 5" Subagent execution failed'
    ]
    assert meter.counted == {"subagent_errors_total depth=1 error_type=initialization_failed": 1}


@pytest.mark.promise("XZ-METRICS")
async def test_every_action_has_its_metric(meter: Counting) -> None:
    broken = fails(ProviderError("gone", fault="bad_request"))
    harness = XzatomaHarness(
        together(subagent(), subagent("other", "find more", max_turns=1), subagent("third", "find all")),
        together(subagent(""), uses("parallel_subagent", tasks=[])),
        says("ok"),
        tasks={
            "find it": [subagent("deeper", "too deep"), *FOUND],
            "find more": [uses("grep"), says("Enough.")],
            "find all": [broken],
        },
        settings=XzatomaSettings(max_depth=1),
        latency=1.0,
    )
    await harness.play()

    assert meter.counted == {
        "subagent_executions_total depth=1": 3,
        "subagent_completions_total depth=1 status=complete": 1,
        "subagent_completions_total depth=1 status=incomplete": 1,
        "subagent_errors_total depth=1 error_type=execution_failed": 1,
        "subagent_errors_total depth=1 error_type=invalid_input": 1,
        "subagent_errors_total depth=1 error_type=empty_tasks": 1,
        "subagent_errors_total depth=2 error_type=max_depth_reached": 1,
    }
    assert meter.active == {"subagent_active_count depth=1": 0}
    assert sorted(meter.measured) == [
        ("subagent_duration_seconds depth=1 status=complete", 3.0),
        ("subagent_duration_seconds depth=1 status=incomplete", 2.0),
        ("subagent_tokens_consumed", 0),
        ("subagent_tokens_consumed", 0),
        ("subagent_turns_used", 2),
        ("subagent_turns_used", 3),
    ]
