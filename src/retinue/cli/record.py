"""`retinue record`: run a task and keep its tree in a file, or run it again with the models of that file."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from retinue.cli.options import option
from retinue.cli.output.terminal import say
from retinue.cli.run import TAPE, Tape
from retinue.core.errors import RetinueError

if TYPE_CHECKING:
    from retinue.app.engine_types import Approver
    from retinue.app.launch.start import Launch, LaunchOptions
    from retinue.app.retinue import Retinue
    from retinue.config.settings import Settings
    from retinue.core.ids import RunId
    from retinue.recording import Player


def record(
    context: typer.Context,
    file: Annotated[Path, typer.Argument(metavar="FILE", help="The recording.")],
    command: Annotated[
        list[str], typer.Argument(metavar="-- run ...", help="The command run with its flags, after two hyphens.")
    ],
    check: Annotated[
        bool, option("--check", help="Play FILE in place of the models, and fail at the first difference.")
    ] = False,
) -> int:
    """Run a task and write its tree to a file, without secrets; with --check, play the file in place of the models.

    A check needs no key and calls no model. Tools answer as recorded; those of dialects work. Exit status of a check: 0
    if the tree did what was recorded, 1 with a diff if not.
    """
    name, *arguments = command
    if name != "run":
        raise typer.BadParameter(f"expected the command run after --, found {name!r:.80}")
    if "--detach" in arguments:
        raise typer.BadParameter("a detached run ends in another process: leave out --detach")
    group = context.find_root().command
    tape: Tape = _Check(file) if check else _Recorder(file)
    token = TAPE.set(tape)
    try:
        code = group.main(["run", *arguments], prog_name="retinue", standalone_mode=False)
    finally:
        TAPE.reset(token)
    return code if isinstance(code, int) else 0


class _Recorder:
    """Writes the tree when it has ended."""

    def __init__(self, file: Path) -> None:
        self._file = file

    def options(self, settings: Settings, options: LaunchOptions) -> LaunchOptions:
        return options

    def open(self, launch: Launch, approver: Approver) -> Retinue:
        return launch.open(approvals=approver)

    async def finish(self, retinue: Retinue, run_id: RunId) -> None:
        from retinue.recording import write_tree

        recording = await write_tree(retinue, run_id, self._file)
        say(f"recorded {len(recording.facts)} facts in {self._file}")


class _Check:
    """Plays the recording."""

    def __init__(self, file: Path) -> None:
        from retinue.recording import Player, read_recording

        self._file = file
        self._player: Player = Player(read_recording(file))

    def options(self, settings: Settings, options: LaunchOptions) -> LaunchOptions:
        from retinue.app.launch.model_choice import ModelChoice
        from retinue.app.settings_file import provider_configs
        from retinue.providers.catalog import provider_config

        recording = self._player.recording
        root = recording.spec(recording.tree.spec)
        configured = {each.name: each for each in provider_configs(settings)}
        names = dict.fromkeys((root.provider, *(model.provider for model in recording.models)))
        first, *others = (configured.get(name) or provider_config(name) for name in names)
        choice = ModelChoice(provider_config=first, model=root.model, others=tuple(others))
        return replace(options, model_choice=choice)

    def open(self, launch: Launch, approver: Approver) -> Retinue:
        names = dict.fromkeys(model.provider for model in self._player.recording.models)
        providers = dict.fromkeys(names, self._player)
        retinue = launch.open(approvals=self._player.approve, providers=providers, hooks=[self._player.hooks])
        self._player.attach(retinue)
        return retinue

    async def finish(self, retinue: Retinue, run_id: RunId) -> None:
        from retinue.recording import ReplayDiffers

        try:
            self._player.verify()
        except ReplayDiffers as difference:
            say(*str(difference).split("\n"))
            raise RetinueError(f"the run did something else than {self._file}, first in {difference.path}") from None
