"""`retinue call`: one question in a process of its own; JSON on stdin, server-sent events on stdout.

It is a contract for programs in any language, described in docs/reference/call.md. This file is light: it begins to
import the rest, and reports in one line what went wrong. The work itself is in `retinue.dispatch.one_call`.
"""

from __future__ import annotations

import gc
import os
import sys
import threading
from importlib import import_module
from typing import TYPE_CHECKING, NoReturn

from retinue.cli.event_loop import exit_now, interrupts, perform
from retinue.cli.output.terminal import INTERRUPTED, never_fail_to_print, say
from retinue.core.errors import RetinueError

if TYPE_CHECKING:
    from collections.abc import Callable

    from retinue.cli.output.sse import HeldStream
    from retinue.dispatch.one_call import OneCall


def main() -> NoReturn:
    """The command as a process that a parent waits for, and that exits as soon as it has answered."""
    never_fail_to_print()
    gc.disable()  # nothing that is loaded is garbage
    # Reading the machine's certificates needs no Python: it takes no time if something else is loaded meanwhile. What
    # both need is loaded before.
    for name in ("asyncio", "ssl"):
        import_module(name)
    threading.Thread(target=_read_certificates, daemon=True).start()
    exit_now(call())


def _read_certificates() -> None:
    from retinue.net.http1 import tls_context

    tls_context()


def call() -> int:
    """Answer one question: JSON on stdin, server-sent events on stdout.

    A contract for programs in any language: the ten fields, the events and what a parent may count on are in
    docs/reference/call.md. Exit status: 0 answered, 1 failed, 130 interrupted.
    """
    from retinue.cli.output.sse import HeldStream
    from retinue.dialects.registry import rust_programs
    from retinue.dispatch.one_call import read_call
    from retinue.telemetry.logs import turn_on_from

    gc.enable()
    try:
        turn_on_from(os.environ, sys.stderr, programs=rust_programs)
        work = read_call(sys.stdin.buffer)  # a process that is kept ready waits here, with everything imported
        if work is None:
            return 1
        return perform(_answer(work, lambda: HeldStream(wire=work.request.provider)))
    except KeyboardInterrupt:
        say("interrupted")
        return INTERRUPTED
    except RetinueError as error:
        say(f"error: {' '.join(str(error).split())}")
    except Exception as bug:
        say(f"error: this is a bug in retinue: {type(bug).__name__}: {' '.join(str(bug).split())}")
    return 1


async def _answer(work: OneCall, open_output: Callable[[], HeldStream]) -> int:
    retinue = work.open()
    with interrupts() as asked_to_stop:
        outcome = await work.answer(retinue, open_output, asked_to_stop)
    if outcome is None:
        say("error: interrupted")
        return INTERRUPTED
    if outcome.result != "completed":
        say(f"error: {' '.join((outcome.error or outcome.reason).split())}")
        return 1
    return 0
