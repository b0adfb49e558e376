"""`retinue runs resume`: goes on with a tree that nobody drives, or tells what became of one that is over."""

from __future__ import annotations

from contextlib import suppress
from dataclasses import dataclass

from msgspec.structs import replace as changed

from retinue.app.engine_types import RunView
from retinue.app.launch.model_choice import choose_model
from retinue.app.launch.open import open_again
from retinue.app.launch_config import LaunchConfig
from retinue.app.open import open_read_only
from retinue.app.retinue import Retinue
from retinue.app.settings_file import load_settings
from retinue.cli.event_loop import interrupts
from retinue.cli.follow import see_through, tell, tell_interrupted
from retinue.cli.output.approval_prompt import Mode, approver_for
from retinue.cli.output.terminal import say, stdout_for_answers_alone
from retinue.cli.run_lookup import find_run
from retinue.config.precedence import Flags
from retinue.core.agent import RunSpec
from retinue.core.commands import DriverRow
from retinue.core.errors import NotAdoptable, RunIsOver
from retinue.core.ids import RunId
from retinue.core.inbox import Close
from retinue.core.run import Outcome


@dataclass(frozen=True, slots=True, kw_only=True)
class Again:
    """What was asked for, flag by flag."""

    run: str
    flags: Flags
    config: str | None
    approvals: Mode
    yes: bool
    json: bool
    quiet: bool
    verbose: bool


async def resume_run(again: Again) -> int:
    """Go on with the run's tree until it has ended, and print the answer; the exit code is that of the run."""
    with interrupts() as asked_to_stop, stdout_for_answers_alone():
        found = await _look_up(again)
        if isinstance(found.view.outcome, Outcome):
            return _tell(again, found.view.run_id, found.view.outcome)
        root_id = found.view.root_id
        if root_id != found.view.run_id:
            say(f"run {found.view.run_id} is part of a tree: going on with its root {root_id}")
        approver = approver_for(again.approvals, yes=again.yes)
        retinue, model_choice = open_again(
            found.launch_config, again.flags, config=again.config, session=found.view.session_id, approvals=approver
        )
        if not again.quiet:
            say(str(model_choice))
        async with retinue:
            await retinue.resume(found.view.run_id)
            root = retinue.handle(root_id)
            await _expect_no_more_input(retinue, root_id)
            outcome = await see_through(
                retinue, root, asked_to_stop, approver=approver, quiet=again.quiet, verbose=again.verbose
            )
    return tell_interrupted(root_id) if outcome is None else _tell(again, root_id, outcome)


async def _expect_no_more_input(retinue: Retinue, root_id: RunId) -> None:
    """A run of a chat would stay for ever: nobody is there who could say more to it."""
    if (await retinue.supervisor.replay(root_id)).accepted.lifecycle.keep_alive:
        with suppress(RunIsOver):
            await retinue.supervisor.post(root_id, Close(key="close"), durable=True)


@dataclass(frozen=True, slots=True)
class Found:
    """The run that is meant, and how the process was set up that started it."""

    view: RunView
    launch_config: LaunchConfig


async def _look_up(again: Again) -> Found:
    async with open_read_only() as client:
        view = await find_run(client, again.run)
        if view.outcome is not None and view.run_id == view.root_id:
            # Its answer is known, but work that it left in the background may have been interrupted.
            view = next((each for each in await client.tree(view.run_id) if each.state == "interrupted"), view)
        if view.outcome is not None:
            return Found(view, LaunchConfig())
        if (driver := await client.driver_of(view.run_id)) is not None:
            raise NotAdoptable(view.run_id, f"it is at work in {_named(driver)}")
        launch_config = await client.launch_config(view.run_id)
        run_spec = (await client.replay(view.root_id)).run_spec
    if launch_config is None or not launch_config.provider_configs:
        launch_config = await _setup_from_here(again, run_spec)
    return Found(view, launch_config)


async def _setup_from_here(again: Again, run_spec: RunSpec) -> LaunchConfig:
    """For a run that a program started without saying how: what this folder and the flags say, under its own names."""
    settings = load_settings(again.config)
    model_choice = await choose_model(changed(again.flags, model=again.flags.model or run_spec.model), settings)
    return LaunchConfig(
        model=run_spec.model,
        provider_configs=(changed(model_choice.provider_config, name=run_spec.provider), *model_choice.others),
        dialects=run_spec.dialects,
        agents=settings.core_agents(),
        tool_modules=tuple(str(path) for path in settings.tool_modules),
        config=str(settings.source or ""),
    )


def _named(driver: DriverRow) -> str:
    pid = driver.process.partition(":")[0]
    host = driver.host.partition("/")[0]
    return f"process {pid} on {host} (driver {driver.driver_id})"


def _tell(again: Again, run_id: RunId, outcome: Outcome) -> int:
    return tell(run_id, outcome, form="json" if again.json else "bare" if again.quiet else "text")
