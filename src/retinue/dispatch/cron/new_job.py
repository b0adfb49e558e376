"""Make a job from the flags of `retinue cron add`; errors say what to write instead."""

from __future__ import annotations

import os
import re
import time
from pathlib import Path

from retinue.app.settings_file import load_settings
from retinue.config.cron import CRON, CronSettings
from retinue.config.precedence import VARIABLES, Flags
from retinue.config.settings import Settings
from retinue.core.agent import DEFAULT_AGENT
from retinue.core.errors import BadInput, UnknownName
from retinue.core.ids import RandomIds
from retinue.dispatch.cron import schedule
from retinue.dispatch.cron.jobs import MISSED, AgentWork, Job, JobPlace, JobWork, Missed, ShellWork
from retinue.dispatch.cron.schedule import At, Cron, Schedule, next_due
from retinue.providers.catalog import check_key_variable

NO_FLAGS = Flags()


def new_job(
    name: str,
    *,
    cron: str | None = None,
    tz: str | None = None,
    at: str | None = None,
    every: str | None = None,
    missed: str | None = None,
    agent: str | None = None,
    prompt: str | None = None,
    shell: str | None = None,
    kind: str | None = None,
    uses_memory: bool = True,
    flags: Flags = NO_FLAGS,
    config: str | None = None,
    no_sandbox: bool = False,
) -> tuple[Job, list[str]]:
    """The job, and notes for the user. It is executed in the current folder, with the settings in `config`."""
    if not re.fullmatch(r"[a-z0-9_-]{1,64}", name):
        raise BadInput(f"{name!r} is not a job name: write 1 to 64 of the characters a-z, 0-9, _ and -")
    settings = load_settings(config)
    now = time.time()
    when = _schedule(cron=cron, at=at, every=every, tz=tz, now=now)
    job = Job(
        name=name,
        creation_id=RandomIds().new(),
        schedule=when,
        work=_work(settings, agent=agent, prompt=prompt, shell=shell, kind=kind, uses_memory=uses_memory),
        place=_place(settings, flags, no_sandbox=no_sandbox),
        tz=when.tz if isinstance(when, Cron) else tz,
        missed=_missed(missed, settings),
        # A single moment in the past is due at once.
        next_run=when.at if isinstance(when, At) else next_due(when, now),
    )
    notes: list[str] = []
    if isinstance(when, At) and when.at < now:
        what = "is skipped" if job.missed == "skip" else "is executed as soon as a daemon runs"
        notes.append(f"that time has passed: the job {what}")
    return job, notes


def _schedule(*, cron: str | None, at: str | None, every: str | None, tz: str | None, now: float) -> Schedule:
    given = [flag for flag, value in (("--cron", cron), ("--at", at), ("--every", every)) if value is not None]
    if len(given) != 1:
        error = f"{' and '.join(given)} exclude each other" if given else "the job has no schedule"
        raise BadInput(f"{error}: write --cron EXPR, --at T or --every D")
    if cron is not None:
        return schedule.cron(cron, tz)
    if at is not None:
        return schedule.at(at, tz)
    if tz is not None:
        raise BadInput("--tz needs --cron or --at: --every counts from now on, in every zone")
    return schedule.every(every or "", now)


def _work(
    settings: Settings, *, agent: str | None, prompt: str | None, shell: str | None, kind: str | None, uses_memory: bool
) -> JobWork:
    if kind not in (None, "shell", "agent"):
        raise BadInput(f"Invalid job type {kind!r}. Expected one of: 'shell', 'agent'")
    if prompt is not None and shell is not None:
        raise BadInput("--prompt and --shell exclude each other: a job runs an agent or a command")
    if kind == "agent" and shell is not None:
        raise BadInput("--shell is for jobs of type 'shell'; one of type 'agent' has --agent A --prompt P")
    if kind == "shell" and prompt is not None:
        raise BadInput("--prompt is for jobs of type 'agent'; one of type 'shell' has --shell CMD")
    if shell is not None:
        return ShellWork(command=_text(shell, "--shell"), agent="" if agent is None else _agent(agent, settings))
    if kind == "shell" or prompt is None:
        missing = "--shell CMD" if kind == "shell" else "--prompt P" if agent is not None or kind else ""
        raise BadInput(f"the job has no work: write {missing or '--agent A --prompt P, or --shell CMD'}")
    if agent is None:
        raise BadInput("--prompt needs an agent: write --agent A as well")
    text = _text(prompt, "--prompt")
    return AgentWork(agent=_agent(agent, settings), prompt=text, uses_memory=uses_memory)


def _agent(name: str, settings: Settings) -> str:
    known = tuple(agent.name for agent in settings.core_agents())
    if name not in (*known, DEFAULT_AGENT):
        raise UnknownName("agent", name, known)
    return name


def _text(given: str, flag: str) -> str:
    if not given.strip():
        raise BadInput(f"{flag} is empty: write what the job does")
    try:
        given.encode()
    except UnicodeEncodeError:
        raise BadInput(f"{flag} is not UTF-8 text") from None
    return given


def _missed(missed: str | None, settings: Settings) -> Missed:
    if missed is None:
        return settings.section(CRON.name, CronSettings).missed
    if missed in MISSED:
        return missed
    raise BadInput(f"--missed {missed!r}: expected one of: {', '.join(MISSED)}")


def _place(settings: Settings, flags: Flags, *, no_sandbox: bool) -> JobPlace:
    """Folder, settings file and model; without flags the RETINUE_* variables, which the daemon may not have."""
    if not any((flags.model, flags.provider, flags.base_url, flags.api_key_env)):
        flags = Flags(**{name: os.environ.get(variable) or None for name, variable in VARIABLES.items()})
    check_key_variable(flags.api_key_env)
    return JobPlace(
        workspace=str(Path.cwd()),
        config=str(settings.source or ""),
        model=flags.model,
        provider=flags.provider,
        base_url=flags.base_url,
        api_key_env=flags.api_key_env,
        no_sandbox=no_sandbox,
    )
