"""The process that started a `retinue call`: it counts the actions of its child, which stops when it is gone."""

from __future__ import annotations

import asyncio
import os
import signal
import threading
import time
from collections import deque
from contextlib import suppress

from retinue.core.ports import CallContext, Tool, ToolResult, weight_of
from retinue.core.wrapped import Wrapped
from retinue.dispatch.grant import MAY_I_ACT, YES
from retinue.engine.calls import NO_ACTIONS_LEFT

PATIENCE = 2.0
"""Seconds that the work has to stop when the parent is gone, before everything here is killed."""


class Parent:
    """Whoever holds the other ends of the two descriptors: `granted` to hear it, and `told` to speak to it."""

    def __init__(self, granted: int, told: int | None) -> None:
        self._granted = granted
        self._told = told
        self._questions: deque[asyncio.Future[bool]] = deque()

    def watch(self, asked_to_stop: asyncio.Event) -> None:
        """Stop when the parent lets go of the grant, or is no more; and leave in any case, whatever hangs here."""
        loop = asyncio.get_running_loop()

        def listen() -> None:
            with suppress(OSError, RuntimeError):  # the loop is closed: this is over anyway
                while said := os.read(self._granted, 4096):
                    loop.call_soon_threadsafe(self._hear, said)
            with suppress(RuntimeError):
                loop.call_soon_threadsafe(asked_to_stop.set)
            time.sleep(PATIENCE)
            if os.getpgrp() == os.getpid():
                os.killpg(0, signal.SIGKILL)
            os.kill(os.getpid(), signal.SIGKILL)

        threading.Thread(target=listen, name="retinue-parent", daemon=True).start()

    def _hear(self, said: bytes) -> None:
        for answer in said:
            if self._questions and not (question := self._questions.popleft()).done():
                question.set_result(answer == YES[0])

    async def may_act(self) -> bool:
        """Ask for one more action; it counts for the parent as if that had performed it."""
        if self._told is None:
            return False
        question: asyncio.Future[bool] = asyncio.get_running_loop().create_future()
        self._questions.append(question)
        try:
            os.write(self._told, MAY_I_ACT)
        except OSError:
            return False  # nobody is there to say yes
        return await question


class Counted(Wrapped):
    """A tool that asks the parent before each of its actions."""

    def __init__(self, tool: Tool, parent: Parent) -> None:
        super().__init__(tool)
        self._parent = parent

    async def call(self, arguments: str, context: CallContext) -> ToolResult:
        """Make the call, if it changes nothing or may be made once more."""
        if weight_of(self.tool, arguments).acts and not await self._parent.may_act():
            return ToolResult(NO_ACTIONS_LEFT, failed=True)
        return await self.tool.call(arguments, context)
