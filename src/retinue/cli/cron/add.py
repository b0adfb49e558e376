"""`retinue cron add`: flags become a job, or a complaint that says what to write instead."""

from __future__ import annotations

import os
import time
from dataclasses import dataclass
from pathlib import Path

from retinue.app.settings_file import load_settings
from retinue.config.cron import CRON, CronSettings
from retinue.config.precedence import VARIABLES, Flags
from retinue.config.settings import Settings
from retinue.core.errors import BadInput, UnknownName
from retinue.core.ids import RandomIds
from retinue.dispatch.cron import schedule
from retinue.dispatch.cron.jobs import (
    MISSED,
    AgentWork,
    Job,
    Missed,
    Place,
    ShellWork,
    Work,
    check_name,
    first_run,
    job_type,
)
from retinue.dispatch.cron.schedule import At, Cron, Schedule
from retinue.providers.catalog import check_key_variable

PLAIN = "main"
"""The agent that does what no agent of the settings is to do."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Wish:
    """What was asked for, flag by flag."""

    name: str
    cron: str | None
    tz: str | None
    at: str | None
    every: str | None
    missed: str | None
    agent: str | None
    prompt: str | None
    shell: str | None
    kind: str | None
    uses_memory: bool
    flags: Flags
    config: str | None
    no_sandbox: bool


def job_of(wish: Wish) -> tuple[Job, list[str]]:
    """The job that is meant, and what whoever adds it should know."""
    settings = load_settings(wish.config)
    now = time.time()
    when = _schedule(wish, now)
    job = Job(
        name=check_name(wish.name),
        born=RandomIds().new(),
        schedule=when,
        work=_work(wish, settings),
        place=_place(wish, settings),
        tz=when.tz if isinstance(when, Cron) else wish.tz,
        missed=_missed(wish, settings),
        next_run=first_run(when, now),
    )
    notes: list[str] = []
    if isinstance(when, At) and when.at < now:
        what = "it is not done any more" if job.missed == "skip" else "it is done as soon as a daemon runs"
        notes.append(f"that moment has passed; {what}")
    return job, notes


def _schedule(wish: Wish, now: float) -> Schedule:
    given = [
        flag for flag, value in (("--cron", wish.cron), ("--at", wish.at), ("--every", wish.every)) if value is not None
    ]
    if len(given) != 1:
        wrong = f"{' and '.join(given)} exclude each other" if given else "nothing says when it is due"
        raise BadInput(f"{wrong}: write --cron EXPR, --at T or --every D")
    if wish.cron is not None:
        return schedule.cron(wish.cron, wish.tz)
    if wish.at is not None:
        return schedule.at(wish.at, wish.tz)
    if wish.tz is not None:
        raise BadInput("--tz goes with --cron or --at: --every counts from now on, in every zone")
    return schedule.every(wish.every or "", now)


def _work(wish: Wish, settings: Settings) -> Work:
    kind = None if wish.kind is None else job_type(wish.kind)
    if wish.prompt is not None and wish.shell is not None:
        raise BadInput("--prompt and --shell exclude each other: a job asks an agent, or runs a command")
    if kind == "agent" and wish.shell is not None:
        raise BadInput("--shell is for jobs of type 'shell'; one of type 'agent' has --agent A --prompt P")
    if kind == "shell" and wish.prompt is not None:
        raise BadInput("--prompt is for jobs of type 'agent'; one of type 'shell' has --shell CMD")
    if wish.shell is not None:
        command = _text(wish.shell, "--shell")
        return ShellWork(command=command, agent="" if wish.agent is None else _agent(wish.agent, settings))
    if kind == "shell" or wish.prompt is None:
        missing = "--shell CMD" if kind == "shell" else "--prompt P" if wish.agent is not None or kind else ""
        raise BadInput(f"nothing says what is done: write {missing or '--agent A --prompt P, or --shell CMD'}")
    if wish.agent is None:
        raise BadInput("nothing says who is asked: write --agent A beside --prompt")
    prompt = _text(wish.prompt, "--prompt")
    return AgentWork(agent=_agent(wish.agent, settings), prompt=prompt, uses_memory=wish.uses_memory)


def _agent(name: str, settings: Settings) -> str:
    known = tuple(agent.name for agent in settings.core_agents())
    if name not in (*known, PLAIN):
        raise UnknownName("agent", name, known)
    return name


def _text(given: str, flag: str) -> str:
    if not given.strip():
        raise BadInput(f"{flag} is empty: say what is to be done")
    try:
        given.encode()
    except UnicodeEncodeError:
        raise BadInput(f"{flag} is not UTF-8 text") from None
    return given


def _missed(wish: Wish, settings: Settings) -> Missed:
    if wish.missed is None:
        return settings.section(CRON.name, CronSettings).missed
    if wish.missed == "once":
        return "once"
    if wish.missed == "skip":
        return "skip"
    raise BadInput(f"--missed {wish.missed!r}: expected one of: {', '.join(MISSED)}")


def _place(wish: Wish, settings: Settings) -> Place:
    """Where the job is done, and whom it asks: what this shell's variables say may not hold in the daemon's."""
    said = {"model": wish.flags.model, "provider": wish.flags.provider, "base_url": wish.flags.base_url}
    said["api_key_env"] = wish.flags.api_key_env
    if not any(said.values()):
        said = {name: os.environ.get(variable) or None for name, variable in VARIABLES.items()}
    check_key_variable(said["api_key_env"])
    return Place(
        workspace=str(Path.cwd()),
        config=str(settings.source or ""),
        model=said["model"],
        provider=said["provider"],
        base_url=said["base_url"],
        api_key_env=said["api_key_env"],
        no_sandbox=wish.no_sandbox,
    )
