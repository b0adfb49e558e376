"""Schedules in a worker: jobs of agents that are due are started as detached runs, which any worker drives.

The table of jobs decides which process executes a due moment, as among cron daemons. A worker follows nothing that
a job has stored but the name of its agent, its prompt, and the names of a model and provider: jobs with a command, an
address or a key of their own are left to a daemon.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from retinue.app.follow import unless_stopped
from retinue.app.handle import RunHandle
from retinue.app.launch.start import LaunchOptions, prepare
from retinue.app.read_only import ReadOnlyClient
from retinue.app.retinue import Retinue
from retinue.app.run_spec import LaunchConfig
from retinue.config.cron import CRON, CronSettings
from retinue.config.precedence import Flags
from retinue.config.settings import Settings
from retinue.core.agent import DEFAULT_AGENT
from retinue.core.ids import SystemClock
from retinue.core.run import Outcome
from retinue.core.text import rfc3339
from retinue.dialects import registry
from retinue.dispatch.cron.daemon import Daemon, this_owner
from retinue.dispatch.cron.execute import Execution, FrontEnd, JobResult, begin, job_prompt, result_of, run_claim
from retinue.dispatch.cron.jobs import AgentWork, Claim, Job
from retinue.dispatch.cron.table import CronTable
from retinue.engine import Approver


class Schedules:
    """The scheduled jobs that a worker starts, with the settings of the worker; made once for each open retinue."""

    def __init__(self, settings: Settings, retinue: Retinue, report: Callable[[str], None]) -> None:
        self._settings = settings
        self._cron: CronSettings = settings.section(CRON.name, CronSettings)
        self._retinue = retinue
        self._report = report
        self._left_alone: set[tuple[str, str]] = set()
        self._stop = asyncio.Event()
        client = ReadOnlyClient(retinue.supervisor)  # not entered: its store is closed by the retinue
        self._client = client
        # Of the runs that this retinue starts, which are jobs alone: how calls that need an approval are handled.
        retinue.launch_config = LaunchConfig(detached=self._cron.approvals)
        self._front_end = FrontEnd(stop=self._stop, approver=lambda cron: cron.approvals, follow=self._follow)
        self._daemon = Daemon(
            CronTable(client.key_value),
            SystemClock(),
            this_owner(),
            self._launch,
            max_running=self._cron.max_running,
            wanted=self._is_wanted,
        )

    async def run(self) -> None:
        """Start jobs as they are due, until `stop`."""
        await self._daemon.run()

    def stop(self) -> None:
        """Start nothing more, and leave what is waited for to other workers; `run` returns soon."""
        self._stop.set()
        self._daemon.stop()

    def _is_wanted(self, job: Job) -> bool:
        obstacle = self._obstacle(job)
        if obstacle and (job.name, job.creation_id) not in self._left_alone:
            self._left_alone.add((job.name, job.creation_id))
            self._report(f"job {job.name}: left alone: {obstacle}")
        return not obstacle

    def _obstacle(self, job: Job) -> str:
        """Why a job is left to a cron daemon or to another worker; empty if it is not."""
        place = job.place
        if not isinstance(job.work, AgentWork):
            return "commands are executed by a cron daemon"
        if place.base_url or place.api_key_env or place.no_sandbox:
            return "its address, key or sandbox flag is used by a cron daemon alone"
        if job.work.agent != DEFAULT_AGENT and job.work.agent not in self._settings.agents:
            return f"no agent named {job.work.agent!r} here"
        if place.provider is not None and place.provider not in self._settings.providers:
            return f"no provider named {place.provider!r} here"
        return ""

    async def _launch(self, claim: Claim) -> str:
        self._report(f"job {claim.name}: started (due {rfc3339(claim.due)})")
        result = await run_claim(
            self._client, claim.name, claim.creation_id, claim.attempt, self._front_end, self._start_run
        )
        if result is not None:
            self._report(f"job {claim.name}: {result.status}")
        return ""

    async def _start_run(self, execution: Execution) -> JobResult | None:
        """Start the run of a job for any worker to drive, and wait for its end."""
        begun = await begin(execution, self._settings)
        if begun is None:
            return None
        agent, _ = begun
        job, work, settings = execution.job, execution.job.work, self._settings
        assert isinstance(work, AgentWork)
        options = LaunchOptions(
            flags=Flags(model=job.place.model, provider=job.place.provider),
            agent=agent.name if agent.name in settings.agents else None,
            dialects=(registry.CRON,),
        )
        launch = await prepare(settings, options)
        prompt = await job_prompt(job, work, agent, settings)
        self._retinue.load_dialects(options.dialects)
        root = await self._retinue.spawn(
            prompt,
            agent=options.agent,
            key=execution.key,
            session=execution.session_id,
            limits=launch.limits,
            dialects=options.dialects,
            tools=launch.tools,
            model=launch.model_choice.full_name,
            system=launch.options.system,
            ceiling=launch.has_ceiling,
            detached=True,
        )
        await execution.running(root.run_id)
        outcome = await self._follow(self._retinue, root, "deny")
        if outcome is None:
            return JobResult(status="interrupted", run_id=root.run_id)
        return result_of(root.run_id, outcome, prompt)

    async def _follow(self, retinue: Retinue, root: RunHandle, approver: Approver) -> Outcome | None:
        """The outcome of a run that some worker drives; None if this one was stopped before."""
        outcomes: list[Outcome] = []

        async def wait() -> None:
            outcomes.append(await root.wait())

        return outcomes[0] if await unless_stopped(wait(), self._stop) else None
