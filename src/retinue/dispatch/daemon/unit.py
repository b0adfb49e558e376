"""A systemd user unit for the daemon, as text; nothing is installed here."""

from __future__ import annotations

from pathlib import Path

from retinue.app.launch.resume import RETINUE_COMMAND
from retinue.dispatch.processes import STOP_SECONDS

NAME = "retinue.service"
_ESCAPES = {"\\": "\\\\", '"': '\\"', "\n": "\\n", "\r": "\\r", "\t": "\\t", "%": "%%"}


def unit(home: Path, config: Path | None) -> str:
    """The unit that runs the daemon for the state folder `home`; both paths are absolute.

    Only the daemon gets the signal to stop, which it passes on: a second one would end a process at once.
    """
    program, *arguments = (*RETINUE_COMMAND, "daemon", *(("--config", str(config)) if config else ()))
    return f"""\
[Unit]
Description=Retinue daemon: cron jobs, background delegates and detached runs

[Service]
Type=exec
ExecStart={" ".join((quoted(program), *map(_argument, arguments)))}
Environment={quoted(f"RETINUE_HOME={home}")}
EnvironmentFile=-%h/.config/retinue/environment
KillMode=mixed
TimeoutStopSec={STOP_SECONDS * 3:.0f}
Restart=on-failure
RestartSec=5

[Install]
WantedBy=default.target
"""


def _argument(word: str) -> str:
    """A word after the program's name; there `$` begins a variable and is doubled. A plain word needs no quotes."""
    return word if word.replace("-", "").isalnum() else quoted(word).replace("$", "$$")


def quoted(word: str) -> str:
    r"""A word as systemd reads it back: in quotes, with escapes, and `%`, which begins a specifier, doubled.

    >>> print(quoted('/srv/my "runs"/50%'))
    "/srv/my \"runs\"/50%%"
    """
    return '"' + "".join(_ESCAPES.get(character, character) for character in word) + '"'
