"""`retinue call`: one question in a process of its own; JSON on stdin, server-sent events on stdout.

It is a contract for programs in any language, described in docs/reference/call.md. This file is light: it begins the
work of loading the rest, and says in one line what went wrong.
"""

from __future__ import annotations

import gc
import os
import sys
import threading
from importlib import import_module
from typing import NoReturn

from retinue.cli.output.terminal import never_fail_to_print, say
from retinue.core.errors import RetinueError

INTERRUPTED = 130


def main() -> NoReturn:
    """The command as a process that somebody waits for, and that is over when it is answered."""
    never_fail_to_print()
    gc.disable()  # nothing that is loaded is garbage
    # Reading the machine's certificates, which the HTTP library does when it is loaded, needs no Python: it takes no
    # time if something else is loaded meanwhile. What both need is loaded before.
    for name in ("asyncio", "ssl"):
        import_module(name)
    threading.Thread(target=import_module, args=("aiohttp",), daemon=True).start()
    from retinue.cli.event_loop import exit_now

    exit_now(call())


def call() -> int:
    """Answer one question: JSON on stdin, server-sent events on stdout.

    A contract for programs in any language: the ten fields, the events and what a parent may count on are in
    docs/reference/call.md. Exit status: 0 answered, 1 failed, 130 interrupted.
    """
    from retinue.cli.call.answer import carry_out

    gc.enable()
    try:
        _listen_to_logs()
        return carry_out(sys.stdin.buffer)
    except KeyboardInterrupt:
        say("interrupted")
        return INTERRUPTED
    except RetinueError as error:
        say(f"error: {' '.join(str(error).split())}")
    except Exception as bug:
        say(f"error: this is a bug in retinue: {type(bug).__name__}: {' '.join(str(bug).split())}")
    return 1


def _listen_to_logs() -> None:
    from retinue.telemetry.logs import VARIABLE, turn_on

    turn_on(os.environ.get(VARIABLE, ""), sys.stderr)
