"""Contents in log lines (tasks, answers, arguments, results): on request of the environment alone, with a notice."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from retinue.core.log_context import set_payloads

VARIABLE = "RETINUE_LOG_PAYLOADS"
"""The environment variable that lets contents into the logs."""

NOTICE = (
    f"{VARIABLE}=1: with RETINUE_LOG=info, prompts, answers, tool arguments and results are logged in plain text; "
    "unset it to stop"
)

_announced = False


def set_from(environment: Mapping[str, str], write: Callable[[str], None]) -> None:
    """Let contents into log lines if the environment asks for them; the notice is written once in a process."""
    global _announced
    on = environment.get(VARIABLE) == "1"
    set_payloads(on=on)
    if on and not _announced:
        _announced = True
        write(NOTICE)
