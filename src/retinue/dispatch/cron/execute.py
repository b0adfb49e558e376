"""Execute cron jobs: check the policy, run an agent or a command, and record the result in the job's history.

`run_now` executes a job on request, `run_claim` a due moment that a daemon has claimed. The front end supplies the stop
event, the approver, and the way in which an agent's run is followed (`FrontEnd`).
"""

from __future__ import annotations

import asyncio
import dataclasses
import os
import time
import uuid
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal, assert_never

from msgspec.structs import replace

from retinue.app.follow import failure_text, unless_stopped
from retinue.app.handle import RunHandle
from retinue.app.launch.start import LaunchOptions, prepare
from retinue.app.memories import memory_of
from retinue.app.open import default_home, open_workspaces, tool_dependencies, writable_folders
from retinue.app.read_only import ReadOnlyClient
from retinue.app.retinue import Retinue
from retinue.app.settings_file import load_settings
from retinue.config.cron import CRON, CronSettings
from retinue.config.settings import Settings
from retinue.core.agent import DEFAULT_AGENT, Agent
from retinue.core.budget import Window
from retinue.core.commands import CallLimit, Charge, DriverRow, WindowFull
from retinue.core.errors import BadInput, NotAdoptable, Refused, RetinueError, ToolError
from retinue.core.log_context import LogScope, line, log_span, logger, run_log, with_payloads
from retinue.core.policy import Autonomy, Policy, Rules, Verdict, asks_every_time, verdict, windows_of
from retinue.core.ports import CallContext, ToolResult
from retinue.core.run import Outcome
from retinue.dialects import registry
from retinue.dialects.base import CronTexts
from retinue.dispatch.cron.daemon import LEASE, this_owner
from retinue.dispatch.cron.jobs import MAX_OUTPUT, AgentWork, Claim, HistoryEntry, Job, ShellWork, entry_of
from retinue.dispatch.cron.table import CronTable
from retinue.engine import Approver
from retinue.tools.path_walk import change_to

log = logger("retinue.cron")

MAX_MEMORIES = 5
"""Memories that are added to the prompt of an agent."""

INTERRUPTED = "stopped; the next daemon continues it"


class Blocked(Refused):
    """A job that its policy does not allow now; the message is stored in its history."""


@dataclass(frozen=True, slots=True, kw_only=True)
class FrontEnd:
    """What the process around an execution supplies."""

    stop: asyncio.Event
    approver: Callable[[CronSettings], Approver]
    follow: Callable[[Retinue, RunHandle, Approver], Awaitable[Outcome | None]]
    """Waits for the end of an agent's run; None if it was stopped before."""


@dataclass(frozen=True, slots=True, kw_only=True)
class JobResult:
    """The result of an execution: `outcome` and `task` of an agent's run, `output` of a command."""

    status: Literal["ok", "failed", "interrupted"]
    error: str = ""
    output: str = ""
    run_id: str = ""
    outcome: Outcome | None = None
    task: str = ""


# ---- on request ------------------------------------------------------------------------------------------------------


async def run_now(client: ReadOnlyClient, name: str, front_end: FrontEnd) -> JobResult:
    """Execute a job now, and record it; its schedule does not change. Raises `BadInput` for wrong settings."""
    cron_table = CronTable(client.key_value)
    job = await cron_table.job(name)
    session = str(uuid.uuid4())
    record = JobRecord(cron_table, HistoryEntry(name=name, due=None, started_at=time.time(), owner=this_owner()))

    async def begin(charges: Sequence[Charge], within: Sequence[CallLimit]) -> bool | WindowFull:
        if full := await cron_table.charge(charges, within):
            return full
        await record.begun()
        return True

    execution = Execution(
        job=job,
        key=f"cron/{job.name}/{job.creation_id}/{session}",
        session_id=f"cron-{session}",
        client=client,
        front_end=front_end,
        begin=begin,
        running=record.running,
    )
    try:
        result = await execute(execution)
        assert result is not None  # an execution without a claim cannot lose it
    except RetinueError as error:
        result = JobResult(status="failed", error=str(error))
        await _record_request(record, job, result)
        if isinstance(error, BadInput):
            raise
    else:
        await _record_request(record, job, result)
    return result


async def _record_request(record: JobRecord, job: Job, result: JobResult) -> None:
    await record.ended(result)
    await record.cron_table.note(job, started=record.entry.started_at or time.time(), status=result.status)


# ---- for a daemon ----------------------------------------------------------------------------------------------------


async def run_claim(
    client: ReadOnlyClient,
    name: str,
    creation_id: str,
    attempt: int,
    front_end: FrontEnd,
    how: Callable[[Execution], Awaitable[JobResult | None]] | None = None,
) -> JobResult | None:
    """Execute a claim of a daemon, and record it; None if the claim belongs to another process by now.

    `how` executes it; by default in this process, with the settings of the job.
    """
    cron_table = CronTable(client.key_value)
    table = await cron_table.table()
    claim = table.claims.get(f"{name}/{creation_id}")
    if claim is None or claim.attempt != attempt or claim.state != "claimed":
        return None
    job = table.job_of(claim)
    if job is None:  # the job was removed since
        await cron_table.finish(claim, "interrupted")
        return None
    owner = this_owner()
    record = JobRecord(cron_table, entry_of(claim, started_at=time.time(), owner=owner))

    async def begin(charges: Sequence[Charge], within: Sequence[CallLimit]) -> bool | WindowFull:
        answer = await cron_table.start(claim, owner=owner, now=time.time(), charges=charges, within=within)
        if answer is True:
            await record.begun()
        return answer

    execution = Execution(
        job=job,
        key=claim.key,
        session_id=claim.session_id,
        client=client,
        front_end=front_end,
        begin=begin,
        running=record.running,
        counted=claim.counted,
    )
    beating = asyncio.ensure_future(_beat(cron_table, claim, front_end.stop))
    try:
        result = await _caught(execution, how or execute)
    finally:
        beating.cancel()
        await asyncio.gather(beating, return_exceptions=True)
    if result is not None:
        await _settle(record, job, claim, result)
    return result


async def _caught(execution: Execution, how: Callable[[Execution], Awaitable[JobResult | None]]) -> JobResult | None:
    try:
        return await how(execution)
    except RetinueError as error:
        log.warning("job %s: %s", execution.job.name, error)
        return JobResult(status="failed", error=str(error))
    except Exception as bug:
        log.exception("job %s: unexpected error while executing it", execution.job.name)
        return JobResult(status="failed", error=f"this is a bug in retinue: {type(bug).__name__}: {bug}")


async def _settle(record: JobRecord, job: Job, claim: Claim, result: JobResult) -> None:
    """Record the result and finish the claim; an interrupted agent's run is left to the next daemon."""
    if result.status == "interrupted" and isinstance(job.work, AgentWork):
        if await record.cron_table.release(claim):
            await record.ended(JobResult(status="interrupted", error=INTERRUPTED, run_id=result.run_id))
        return
    # The history first: a process that took over an unfinished claim would record it as interrupted.
    await record.ended(result)
    await record.cron_table.finish(claim, result.status)


async def _beat(cron_table: CronTable, claim: Claim, stop: asyncio.Event) -> None:
    """Renew the claim regularly; set `stop` once another process has taken it over."""
    while True:
        await asyncio.sleep(LEASE / 4)
        if not await cron_table.beat(claim):
            log.warning("job %s was taken over by another process", claim.name)
            stop.set()


@dataclass(frozen=True, slots=True)
class JobRecord:
    """The history entry of one execution: written when it begins, and again as more is known."""

    cron_table: CronTable
    entry: HistoryEntry

    async def begun(self) -> None:
        await self.cron_table.remember(self.entry)

    async def running(self, run_id: str) -> None:
        await self.cron_table.remember(replace(self.entry, run_id=run_id))

    async def ended(self, result: JobResult) -> None:
        await self.cron_table.remember(
            replace(
                self.entry,
                ended_at=time.time(),
                status=result.status,
                error=result.error,
                output=result.output,
                run_id=result.run_id,
            )
        )


# ---- one execution ---------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class Execution:
    """One execution of a job.

    `begin` is called once the policy allows the job, with the charges for its windows and their limits; it returns
    False if the claim is lost, and the window that is full if one is: then nothing was charged or begun.
    `counted` means that an earlier process has charged it. `running` is called with the id of the agent's run.
    """

    job: Job
    key: str
    session_id: str
    client: ReadOnlyClient
    front_end: FrontEnd
    begin: Callable[[Sequence[Charge], Sequence[CallLimit]], Awaitable[bool | WindowFull]]
    running: Callable[[str], Awaitable[None]]
    counted: bool = False


async def execute(execution: Execution) -> JobResult | None:
    """Execute the job; None if its claim is lost. Raises what prevents the execution."""
    job = execution.job
    settings = _settings_of(job)
    begun = await begin(execution, settings)
    if begun is None:
        return None
    agent, policy = begun
    with log_span(span(job)) as job_span:
        match job.work:
            case AgentWork():
                return await _run_agent(execution, job.work, agent, settings, job_span)
            case ShellWork():
                return await _run_command(execution, job.work, agent, policy, settings)
            case _:
                assert_never(job.work)


async def begin(execution: Execution, settings: Settings) -> tuple[Agent, Policy] | None:
    """Begin an execution that the policy allows now: its agent and the policy; None if its claim is lost.

    Raises `Blocked` if it is not allowed.
    """
    job = execution.job
    agent = _agent_of(job, settings)
    configured = settings.policy_for(agent)
    policy = configured or Policy()
    _check_may_act(job, policy)
    window = windows_of(agent.name, policy)[0] if configured is not None and not execution.counted else None
    if window is not None and await _used(execution.client, window) >= (window.caps.calls or 0):
        raise Blocked(_texts().blocked("rate limit exceeded"))
    now = time.time()
    charges = [Charge(window.name, now, now + window.span_seconds, calls=1)] if window else []
    limits = [CallLimit(window.name, now - window.span_seconds, window.caps.calls or 0)] if window else []
    answer = await execution.begin(charges, limits)
    if isinstance(answer, WindowFull):  # another process took the last action since
        raise Blocked(_texts().blocked("action budget exhausted"))
    return (agent, policy) if answer else None


def _settings_of(job: Job) -> Settings:
    """The settings of the job; the process changes to the job's folder."""
    os.environ["RETINUE_HOME"] = str(default_home().absolute())  # relative to the current folder, not to the job's
    try:
        change_to(job.place.workspace)
    except OSError as error:
        raise BadInput(f"the job's folder {job.place.workspace} cannot be entered: {error.strerror}") from error
    settings = load_settings(job.place.config or None)
    if job.place.no_sandbox:
        settings = replace(settings, tool_options=replace(settings.tool_options, sandbox="off"))
    return settings


def _agent_of(job: Job, settings: Settings) -> Agent:
    alias = job.work.agent or DEFAULT_AGENT
    known = {agent.name: agent for agent in settings.core_agents()}
    if alias not in known and alias != DEFAULT_AGENT:
        raise Blocked(_texts().unknown_agent(alias))
    return known.get(alias) or Agent(name=DEFAULT_AGENT)


def _check_may_act(job: Job, policy: Policy) -> None:
    if policy.autonomy == Autonomy.READONLY:
        raise Blocked(_texts().blocked("autonomy is read-only"))
    if isinstance(job.work, ShellWork):
        from retinue.tools.shell import call_risk, parse

        assessed = call_risk(parse(job.work.command))
        decision = verdict(policy, tool="shell", risk=assessed.risk, acts=assessed.acts)
        # Adding the job has approved its command once; `always_ask` needs an approval for every call.
        if decision.verdict is Verdict.REFUSE or asks_every_time(policy, "shell"):
            raise Blocked(_texts().tool_refusal(decision.reason))


def _texts() -> CronTexts:
    texts = registry.entry(registry.CRON).cron
    assert texts is not None
    return texts


async def _used(client: ReadOnlyClient, window: Window) -> int:
    since = time.time() - window.span_seconds
    return sum(charge.calls for charge in await client.charges(window.name, since))


# ---- an agent --------------------------------------------------------------------------------------------------------


async def _run_agent(
    execution: Execution, work: AgentWork, agent: Agent, settings: Settings, job_span: LogScope
) -> JobResult:
    job, front_end = execution.job, execution.front_end
    options = LaunchOptions(
        flags=job.place.flags,
        agent=agent.name if agent.name in settings.agents else None,
        dialects=(registry.CRON,),
        session=execution.session_id,
        no_sandbox=job.place.no_sandbox,
    )
    launch = await prepare(settings, options)
    for warning in launch.warnings():
        log.warning("%s", warning)
    prompt = await job_prompt(job, work, agent, settings)
    approver = front_end.approver(settings.section(CRON.name, CronSettings))
    async with launch.open(approvals=approver) as retinue:
        try:
            root = await launch.spawn(retinue, prompt, key=execution.key)
        except NotAdoptable as live:
            root = await take_over(retinue, live, front_end.stop)
            if root is None:
                return JobResult(status="interrupted", run_id=live.run_id)
        except Refused as refused:
            raise Blocked(_texts().spawn_failed(str(refused))) from refused
        job_span.fields = span(job, run_id=root.run_id)
        await execution.running(root.run_id)
        with run_log(retinue.supervisor.log_fields(root.run_id)):
            log.info("%s", line(event="started", session_id=execution.session_id))
            outcome = await front_end.follow(retinue, root, approver)
            task = (await root.look()).task
            log.info("%s", line(event="ended", status="interrupted" if outcome is None else outcome.result))
    if outcome is None:
        return JobResult(status="interrupted", run_id=root.run_id)
    return result_of(root.run_id, outcome, task)


def result_of(run_id: str, outcome: Outcome, task: str) -> JobResult:
    """The result of a job whose run has ended."""
    error = "" if outcome.ok else failure_text(outcome)
    return JobResult(status="ok" if outcome.ok else "failed", error=error, run_id=run_id, outcome=outcome, task=task)


async def job_prompt(job: Job, work: AgentWork, agent: Agent, settings: Settings) -> str:
    """The prompt of a job with the memories of its agent that match it."""
    memories = await _memories(work, agent, settings) if work.uses_memory else []
    return _texts().prompt(job.name, work.prompt, memories)


async def _memories(work: AgentWork, agent: Agent, settings: Settings) -> list[tuple[str, str]]:
    """The memories of the agent that match the prompt: key and content."""
    from retinue.tools.memory import MemorySearch

    search = MemorySearch(
        agents=(agent.name, *agent.memory_from), query=work.prompt, limit=MAX_MEMORIES, without=("conversation",)
    )
    try:
        memory = memory_of(settings, agent)
        found = [] if memory is None else await asyncio.to_thread(memory.recall, search)
    except ToolError as error:
        log.warning("%s", error)  # the job runs without them; the memory tools of the agent report the error themselves
        return []
    return [(each.memory.key, each.memory.content) for each in found]


# ---- a command -------------------------------------------------------------------------------------------------------


async def _run_command(
    execution: Execution, work: ShellWork, agent: Agent, policy: Policy, settings: Settings
) -> JobResult:
    from retinue.tools.shell import parse, run_command

    key_value = execution.client.key_value
    agents = settings.core_agents()
    own = {each.name: each.policy for each in agents if each.policy is not None}
    dependencies = dataclasses.replace(
        tool_dependencies(
            settings.tool_options,
            key_value=key_value,
            home=default_home(),
            agents_write=writable_folders(agents, settings.policy),
        ),
        opened_workspaces=open_workspaces(agents, Rules(session=settings.policy, agents=own)),
    )
    context = CallContext(
        run_id=execution.session_id,
        session_id=execution.session_id,
        root_id=execution.session_id,
        key=execution.key,
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

    log.info("%s", with_payloads(line(event="started"), command=work.command))
    try:
        finished = await unless_stopped(run(), execution.front_end.stop)
    except ToolError as error:
        log.info("%s", line(event="ended", status="failed"))
        return JobResult(status="failed", error=_texts().tool_refusal(str(error)))
    status = "interrupted" if not finished else "failed" if results[0].failed else "ok"
    log.info("%s", with_payloads(line(event="ended", status=status), output=results[0].text if finished else None))
    if not finished:
        return JobResult(status="interrupted", error="stopped; what it did before is not undone")
    text = results[0].text
    output = text if len(text) <= MAX_OUTPUT else f"{text[:MAX_OUTPUT]} [... {len(text) - MAX_OUTPUT} more]"
    if results[0].failed:
        return JobResult(status="failed", error=text.splitlines()[-1], output=output)
    return JobResult(status="ok", output=output)


# ---- log lines -------------------------------------------------------------------------------------------------------


def span(job: Job, run_id: str | None = None) -> str:
    """The prefix of every log line of a job.

    >>> from retinue.dispatch.cron.schedule import At
    >>> span(Job(name="report", creation_id="", schedule=At(0.0), work=AgentWork(agent="dig", prompt="Dig.")), "r1")
    'subagent category="cron" agent_alias=dig cron_job_id=report run_id=r1 spawn_site="cron"'
    """
    return _texts().span(job.work.agent or DEFAULT_AGENT, job.name, run_id)


# ---- takeover --------------------------------------------------------------------------------------------------------

POLL = 0.5
"""Seconds between two attempts."""


async def take_over(retinue: Retinue, live: NotAdoptable, stop: asyncio.Event) -> RunHandle | None:
    """The run, once it has ended or can be driven here; None if `stop` was set before.

    A driver without a heartbeat for its whole lease is declared dead. After a restart of the machine the process ids of
    older drivers mean nothing, and the lease alone shows that they are dead.
    """
    beat, still_since = -1, 0.0
    while not stop.is_set():
        driver = await _driver_of(retinue, live.run_id)
        if driver is None:
            raise live
        now = asyncio.get_running_loop().time()
        if driver.beat != beat:
            beat, still_since = driver.beat, now
        elif now - still_since >= driver.lease:
            await retinue.supervisor.drivers.declare_dead(driver.driver_id, beat=beat)
        await unless_stopped(asyncio.sleep(POLL), stop)
        try:
            return await retinue.resume(live.run_id)
        except NotAdoptable as still:
            live = still
    return None


async def _driver_of(retinue: Retinue, run_id: str) -> DriverRow | None:
    row = await retinue.supervisor.stored.run(run_id)
    return None if row is None else await retinue.supervisor.drivers.find(row.driver_id)
