"""The story of `retinue demo`: an incident, all replies of the scripted model, and the worker process that plays it.

The next reply follows from the history in the request, so a new process continues in the middle of the story. The
viewer starts a worker as `python -m retinue.cli.demo.story HOME PROCESS PACE`; it exits when its stdin is closed, so it
does not outlive the viewer.
"""

from __future__ import annotations

import os
import sys
import threading
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec

from retinue.app.open import open as open_retinue
from retinue.app.settings_file import load_settings
from retinue.app.tool_modules import load_tools
from retinue.cli.event_loop import perform
from retinue.core.messages import AssistantMessage, Message, ToolMessage
from retinue.core.ports import Request
from retinue.core.usage import NANO
from retinue.providers import scripted
from retinue.providers.scripted import Line, Script, ScriptedProvider, ScriptedReply, calls, says, together

_PACKAGED = Path(__file__).parent / "incident"
_FOLDER = _PACKAGED if _PACKAGED.exists() else Path(__file__).resolve().parents[4] / "examples" / "incident"
SETTINGS = _FOLDER / "retinue.toml"
"""The agents and tools of the story: `examples/incident` of the repository, which a wheel contains, too."""

PROVIDER, MODEL = "scripted", "incident-story"
PRICES = {MODEL: (3 * NANO // 1_000_000, 15 * NANO // 1_000_000)}
"""Made up: 3 dollars for a million tokens of input, 15 for a million of output."""

SESSION = KEY = "incident"
ROOT, WRITER, REMEDIATOR = "main", "writer", "remediator"
MAX_TURNS = 40

TASK = "Throughput dropped 30% on Feb 18. Find out why; fix it."
ANSWER = "No, that was accidental. Revert it."
"""The user's answer to the question of the story."""

CUT_OFF = {REMEDIATOR: 5, WRITER: 2}
"""The turns during which the first process is killed; in that process they do not end."""


def script(pace: float, *, process: int) -> Script:
    """The replies of all agents for the first or second process; `pace` is the seconds of a short one."""
    return (
        Script()
        .play(ROOT, *[_leads(pace)] * MAX_TURNS)
        .play("researcher", *_researcher())
        .play(WRITER, *_cut_off(WRITER, _writer(pace), process))
        .play(REMEDIATOR, *_cut_off(REMEDIATOR, _remediator(), process))
    )


def _cut_off(agent: str, lines: Sequence[Line], process: int) -> Sequence[Line]:
    turn = CUT_OFF[agent]
    return (*lines[: turn - 1], scripted.hangs(), *lines[turn:]) if process == 1 else lines


# ---- the orchestrator -----------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Repeated:
    """A reply that is repeated while one of its results reports a running task."""

    line: ScriptedReply


def _leads(pace: float) -> scripted.LineFunction:
    """The orchestrator, whose next reply depends on the history."""
    plan = _plan(pace)

    def line(request: Request) -> Line:
        place = 0
        for answers in _turns(request.messages):
            if not (isinstance(plan[place], Repeated) and any('"status":"running"' in answer for answer in answers)):
                place += 1
        match plan[place]:
            case Repeated(line=again):
                return again
            case ScriptedReply() as once:
                return once
            case improvised:
                return improvised(request)

    return line


def _plan(pace: float) -> Sequence[ScriptedReply | Repeated | scripted.LineFunction]:
    return (
        together(
            _shares("problem_summary", "Throughput dropped 30% after a config change on Feb 18."),
            _shares("scope", "Identify the root cause. Production may be read, not changed."),
        ),
        _delegates("list_agents"),
        _delegates(
            "spawn",
            agent="researcher",
            task="Investigate the problem described in problem_summary. Check connection pool settings and thread "
            "utilization. Write findings to shared context key findings_summary.",
        ),
        Repeated(together(_slowly("The researcher is at work.", pace / 2), _delegates("status", task_id="t_01"))),
        _delegates("collect", task_id="t_01"),
        together(_reads("findings_summary"), _reads("open_questions")),
        says("Was the pool size change of Feb 18 intentional?"),
        together(
            _shares("decisions_made", "The config change was accidental. The user approves the revert."),
            calls("shared_context", action="delete", key="open_questions"),
        ),
        _delegates(
            "define",
            name=REMEDIATOR,
            description="Executes remediation steps in staging",
            system_prompt="You are a remediation specialist. Read the findings and decisions from shared context, then "
            "execute the approved fix. Verify that it resolves the issue. Write results to shared context.",
            tools=["shared_context", "run_staging_command", "update_config"],
            max_turns=15,
        ),
        together(
            _delegates(
                "spawn",
                agent=REMEDIATOR,
                task="Execute the approved revert per decisions_made. Verify throughput recovery in staging.",
            ),
            _delegates(
                "spawn",
                agent=WRITER,
                task="Draft an incident summary for stakeholders based on findings_summary and decisions_made.",
            ),
        ),
        Repeated(
            together(
                _slowly("Both are at work.", pace),
                _delegates("status", task_id="t_02"),
                _delegates("status", task_id="t_03"),
            )
        ),
        together(_delegates("collect", task_id="t_03"), _delegates("collect", task_id="t_02")),
        together(_reads("incident_report"), _reads("remediation_status")),
        _presents,
    )


def _presents(request: Request) -> Line:
    """A reply with the two texts that were read last from shared context."""
    *_, answers = _turns(request.messages)
    report, status = (_value(answer) for answer in answers)
    return says(f"{report}\n\n{status}")


def _turns(messages: Sequence[Message]) -> Iterator[list[str]]:
    answers: list[str] | None = None
    for message in messages:
        match message:
            case AssistantMessage():
                if answers is not None:
                    yield answers
                answers = []
            case ToolMessage(text=text) if answers is not None:
                answers.append(text)
            case _:
                pass
    if answers is not None:
        yield answers


def _value(answer: str) -> str:
    read: Any = msgspec.json.decode(answer)
    return str(read.get("value", answer))


# ---- the specialists ------------------------------------------------------------------------------------------------


def _researcher() -> Sequence[Line]:
    return (
        calls("shared_context", action="list_keys"),
        together(_reads("problem_summary"), _reads("scope")),
        calls("search_logs", query="config pool timeout"),
        together(
            calls("query_metrics", name="connection_pool_size"), calls("query_metrics", name="thread_utilization")
        ),
        _shares(
            "findings_summary",
            "Config change 4711 (Feb 18, 09:12) set connection_pool.size from 200 to 20. Since then 98% of threads are "
            "blocked, waiting for a connection; throughput fell from 1450 to 1015 requests/s.",
        ),
        _shares("open_questions", "Was the pool size change intentional?"),
        says(
            "Root cause identified: connection pool reduced from 200 to 20 in the config change of Feb 18. "
            "Details in shared context."
        ),
    )


def _writer(pace: float) -> Sequence[Line]:
    return (
        together(_reads("findings_summary"), _reads("decisions_made")),
        together(
            _slowly("What happened, why, and what was done: short, and without blame.", pace / 2),
            _shares(
                "incident_report",
                "On Feb 18 an accidental config change reduced the connection pool from 200 to 20. Requests had to "
                "wait for connections, and throughput fell by 30%. The change is being reverted.",
            ),
        ),
        says("Incident summary drafted and written to shared context key incident_report."),
    )


def _remediator() -> Sequence[Line]:
    return (
        calls("shared_context", action="list_keys"),
        together(_reads("findings_summary"), _reads("decisions_made")),
        calls("run_staging_command", command="load-test 20"),
        calls("update_config", environment="staging", setting="connection_pool.size", value=200),
        calls("run_staging_command", command="load-test 200"),
        calls("run_staging_command", command="threads 200"),
        _shares(
            "remediation_status",
            "Staging is reverted: with 200 connections throughput is back at 1450 requests/s. "
            "Production waits for your approval.",
        ),
        says("Config reverted in staging, throughput recovered to baseline. Ready for production pending approval."),
    )


# ---- calls ----------------------------------------------------------------------------------------------------------


def _delegates(action: str, **fields: object) -> ScriptedReply:
    return calls("subagent", action=action, **fields)


def _shares(key: str, value: str) -> ScriptedReply:
    return calls("shared_context", action="write", key=key, value=value)


def _reads(key: str) -> ScriptedReply:
    return calls("shared_context", action="read", key=key)


def _slowly(text: str, every: float) -> ScriptedReply:
    """Text that is streamed word by word."""
    first, *others = text.split()
    return scripted.streams(first, *(f" {word}" for word in others), every=every)


# ---- the worker process ---------------------------------------------------------------------------------------------


def log_of(home: Path, process: int) -> Path:
    """The file in which the scripted model of a process logs its calls."""
    return home / f"model-calls-{process}"


async def work(home: Path, process: int, pace: float) -> int:
    """Drive the story to its end: the question to the user, the user's answer, and the rest."""
    settings = load_settings(SETTINGS)
    model = ScriptedProvider(script(pace, process=process), latency=pace, prices=PRICES, log=log_of(home, process))
    async with open_retinue(
        providers={PROVIDER: model},
        model=f"{PROVIDER}:{MODEL}",
        agents=settings.core_agents(),
        tools=load_tools(settings.tool_modules),
        session=SESSION,
        home=home,
        adopt=True,
    ) as retinue:
        # The same key is the same run: the second process finds the run of the first, which it has adopted.
        root = await retinue.spawn(TASK, key=KEY, tools=(), ceiling=False, keep_alive=True)
        await root.answer(2)
        outcome = await root.close()
    return 0 if outcome.ok else 1


def _end_with_stdin() -> None:
    while os.read(sys.stdin.fileno(), 1):
        pass
    os._exit(1)


if __name__ == "__main__":
    threading.Thread(target=_end_with_stdin, daemon=True).start()
    sys.exit(perform(work(Path(sys.argv[1]), int(sys.argv[2]), float(sys.argv[3]))))
