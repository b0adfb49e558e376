"""One time that a job is done: may it be, and then an agent is asked, or a command run in the sandbox."""

from __future__ import annotations

import asyncio
import logging
import os
import time
from collections.abc import Awaitable, Callable, Generator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Literal, assert_never

from msgspec.structs import replace

from retinue.app.launch.limits import limits_for, uncounted
from retinue.app.open import SystemClock, default_home
from retinue.app.read_only import ReadOnlyClient
from retinue.app.settings_file import load_settings
from retinue.cli.cron.add import PLAIN
from retinue.cli.event_loop import first_of
from retinue.cli.follow import see_through, what_went_wrong
from retinue.cli.output.terminal import stdout_for_answers_alone
from retinue.config.cron import CRON, CronSettings
from retinue.config.precedence import Flags
from retinue.config.settings import Settings
from retinue.core.agent import Agent
from retinue.core.budget import Window
from retinue.core.commands import Charge
from retinue.core.errors import BadInput, NotAdoptable, Refused, ToolError
from retinue.core.policy import Autonomy, Policy, Verdict, verdict
from retinue.core.ports import CallContext, ToolResult
from retinue.core.profiles import windows_of
from retinue.core.run import Outcome
from retinue.dialects import registry
from retinue.dialects.base import CronTexts
from retinue.dispatch.cron.history import MOST_OUTPUT
from retinue.dispatch.cron.jobs import AgentWork, Job, ShellWork
from retinue.dispatch.cron.takeover import go_on
from retinue.engine import Approver

log = logging.getLogger("retinue.cron")

RECALLED = 5
"""Memories that an agent is shown with its prompt."""


class Blocked(Refused):
    """A job that may not be done as things stand; the reason is what its log shows."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Done:
    """How it went. `outcome` is that of an agent's run, `output` what a command printed."""

    status: Literal["ok", "failed", "interrupted"]
    error: str = ""
    output: str = ""
    run_id: str = ""
    outcome: Outcome | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Doing:
    """One time that a job is done.

    `begin` is called when nothing speaks against it, with what it counts for, and says whether it is still ours to do.
    `counted` says that it was counted before, by a process that is gone. `running` hears of the agent's run.
    """

    job: Job
    key: str
    session_id: str
    client: ReadOnlyClient
    asked_to_stop: asyncio.Event
    begin: Callable[[Sequence[Charge]], Awaitable[bool]]
    running: Callable[[str], Awaitable[None]]
    approver: Callable[[CronSettings], Approver]
    counted: bool = False
    quiet: bool = True
    verbose: bool = False


async def do(doing: Doing) -> Done | None:
    """Do the job; None if it is not ours any more. Raises what keeps it from being done."""
    job = doing.job
    settings = _settings_of(job)
    agent = _agent_of(job, settings)
    policy = agent.policy or Policy()
    _check_may_act(job, policy)
    window = windows_of(agent.name, policy)[0] if agent.policy is not None and not doing.counted else None
    if window is not None and await _used(doing.client, window) >= (window.caps.calls or 0):
        raise Blocked(_texts().blocked("rate limit exceeded"))
    now = time.time()
    if not await doing.begin([Charge(window.name, now, now + window.span_seconds, calls=1)] if window else []):
        return None
    # Another process may have taken the last action at the same time: then each sees both, and neither goes on.
    if window is not None and await _used(doing.client, window) > (window.caps.calls or 0):
        raise Blocked(_texts().blocked("action budget exhausted"))
    match job.work:
        case AgentWork():
            with stdout_for_answers_alone():
                return await _ask(doing, job.work, agent, settings)
        case ShellWork():
            return await _execute(doing, job.work, agent, policy, settings)
        case _:
            assert_never(job.work)


def _settings_of(job: Job) -> Settings:
    """The settings of the job, in whose folder this process is from now on."""
    os.environ["RETINUE_HOME"] = str(default_home().absolute())  # as seen from here, not from the job's folder
    try:
        os.chdir(job.place.workspace)
    except OSError as error:
        raise BadInput(f"the job's folder {job.place.workspace} cannot be entered: {error.strerror}") from error
    settings = load_settings(job.place.config or None)
    if job.place.no_sandbox:
        settings = replace(settings, tool_options=replace(settings.tool_options, sandbox="off"))
    return settings


def _agent_of(job: Job, settings: Settings) -> Agent:
    alias = job.work.agent or PLAIN
    known = {agent.name: agent for agent in settings.core_agents()}
    if alias not in known and alias != PLAIN:
        raise Blocked(_texts().unknown_agent(alias))
    return known.get(alias) or Agent(name=PLAIN)


def _check_may_act(job: Job, policy: Policy) -> None:
    if policy.autonomy == Autonomy.READONLY:
        raise Blocked(_texts().blocked("autonomy is read-only"))
    if isinstance(job.work, ShellWork):
        from retinue.tools.shell import call_risk, parse

        assessed = call_risk(parse(job.work.command))
        decision = verdict(policy, tool="shell", risk=assessed.risk, acts=assessed.acts)
        # Whoever added the job has approved its command by writing it; "every time" needs somebody every time.
        if decision.verdict is Verdict.REFUSE or "shell" in policy.always_ask:
            raise Blocked(_texts().tool_refusal(decision.reason))


def _texts() -> CronTexts:
    texts = registry.entry(registry.CRON).cron
    assert texts is not None
    return texts


async def _used(client: ReadOnlyClient, window: Window) -> int:
    since = time.time() - window.span_seconds
    return sum(charge.calls for charge in await client.charges(window.name, since))


# ---- an agent --------------------------------------------------------------------------------------------------------


async def _ask(doing: Doing, work: AgentWork, agent: Agent, settings: Settings) -> Done:
    from retinue.app.launch.model_choice import choose_model
    from retinue.app.launch.open import open_new

    job, place = doing.job, doing.job.place
    flags = Flags(model=place.model, provider=place.provider, base_url=place.base_url, api_key_env=place.api_key_env)
    settled = settings.agents.get(agent.name)
    model_choice = await choose_model(flags, settings, agent=agent.name if settled is not None else None)
    limits = limits_for(settings, agent.name)
    with in_span(span(job)):
        for warning in uncounted(model_choice, settings, limits, agent=agent.name, delegates=True):
            log.warning("%s", warning.removeprefix("warning: "))
    memories = await _memories(work, agent, settings) if work.uses_memory else []
    prompt = _texts().prompt(job.name, work.prompt, memories)
    approver = doing.approver(settings.section(CRON.name, CronSettings))
    async with open_new(
        model_choice,
        settings,
        dialects=(registry.CRON,),
        session=doing.session_id,
        approvals=approver,
        no_sandbox=place.no_sandbox,
    ) as retinue:
        try:
            root = await retinue.spawn(
                prompt,
                agent=agent.name if settled is not None else None,
                key=doing.key,
                limits=limits,
                model=f"{model_choice.provider_config.name}:{model_choice.model}",
            )
        except NotAdoptable as live:
            root = await go_on(retinue, live, doing.asked_to_stop)
            if root is None:
                return Done(status="interrupted", run_id=live.run_id)
        except Refused as refused:
            raise Blocked(_texts().spawn_failed(str(refused))) from refused
        await doing.running(root.run_id)
        with in_span(span(job, run_id=root.run_id)):
            log.info("event=started session_key=%s", doing.session_id)
            outcome = await see_through(
                retinue, root, doing.asked_to_stop, approver=approver, quiet=doing.quiet, verbose=doing.verbose
            )
            status = "interrupted" if outcome is None else outcome.result
            log.info("event=ended status=%s", status)
    if outcome is None:
        return Done(status="interrupted", run_id=root.run_id)
    error = "" if outcome.ok else what_went_wrong(outcome)
    return Done(status="ok" if outcome.ok else "failed", error=error, run_id=root.run_id, outcome=outcome)


async def _memories(work: AgentWork, agent: Agent, settings: Settings) -> list[tuple[str, str]]:
    """The memories of the agent that match the prompt: key and content."""
    from retinue.tools.memory import Search, open_memory

    kind = agent.memory or settings.tool_options.memory
    if kind == "none":
        return []
    search = Search(
        agents=(agent.name, *agent.memory_from), query=work.prompt, limit=RECALLED, without=("conversation",)
    )
    try:
        found = await asyncio.to_thread(lambda: open_memory(kind, default_home()).recall(search))
    except ToolError as error:
        log.warning("%s", error)  # the agent can work without memories; its own tools report the error too
        return []
    return [(each.memory.key, each.memory.content) for each in found]


# ---- a command -------------------------------------------------------------------------------------------------------


async def _execute(doing: Doing, work: ShellWork, agent: Agent, policy: Policy, settings: Settings) -> Done:
    from retinue.sandbox.probe import choose
    from retinue.tools.dependencies import ToolDependencies
    from retinue.tools.shell import parse, run_command

    options = settings.tool_options
    dependencies = ToolDependencies(
        sandbox=choose(options.sandbox),
        key_value=doing.client.key_value,
        clock=SystemClock(),
        home=default_home(),
        network=options.network,
        program_memory_mb=options.program_memory_mb,
        settings=(*settings.tool_modules, *([settings.source] if settings.source is not None else [])),
    )
    context = CallContext(
        run_id=doing.session_id,
        session_id=doing.session_id,
        root_id=doing.session_id,
        key=doing.key,
        turn=0,
        index=0,
        depth=0,
        agent=agent.name,
        path="cron",
        handle=None,
        policy=policy,
        offered=("shell",),
        workspace=agent.workspace or str(Path.cwd()),
        identity=agent.name,
    )
    results: list[ToolResult] = []

    async def run() -> None:
        results.append(await run_command(parse(work.command), context, dependencies, seconds=None, folder=""))

    with in_span(span(doing.job)):
        log.info("event=started")
        try:
            finished = await first_of(run(), doing.asked_to_stop)
        except ToolError as error:
            log.info("event=ended status=failed")
            return Done(status="failed", error=_texts().tool_refusal(str(error)))
        status = "interrupted" if not finished else "failed" if results[0].failed else "ok"
        log.info("event=ended status=%s", status)
    if not finished:
        return Done(status="interrupted", error="it was stopped; what it had done by then stays done")
    text = results[0].text
    shown = text if len(text) <= MOST_OUTPUT else f"{text[:MOST_OUTPUT]} [... {len(text) - MOST_OUTPUT} more]"
    if results[0].failed:
        return Done(status="failed", error=text.splitlines()[-1], output=shown)
    return Done(status="ok", output=shown)


# ---- log lines -------------------------------------------------------------------------------------------------------


def span(job: Job, run_id: str | None = None) -> str:
    """What every log line of a job begins with.

    >>> from retinue.dispatch.cron.schedule import At
    >>> span(Job(name="report", born="", schedule=At(0.0), work=AgentWork(agent="dig", prompt="Dig.")), "r1")
    'subagent category="cron" agent_alias=dig cron_job_id=report run_id=r1 spawn_site="cron"'
    """
    return _texts().span(job.work.agent or PLAIN, job.name, run_id)


@contextmanager
def in_span(prefix: str) -> Generator[None]:
    """Put this before every log line: all that this process does meanwhile, it does for one job."""

    def mark(record: logging.LogRecord) -> bool:
        record.msg, record.args = f"{prefix} {record.getMessage()}", ()
        return True

    handlers = tuple(logging.getLogger("retinue").handlers)
    for handler in handlers:
        handler.addFilter(mark)
    try:
        yield
    finally:
        for handler in handlers:
            handler.removeFilter(mark)
