"""Which chats have a session open at the same time: each goes on by itself, so whoever talks there should know."""

from __future__ import annotations

from contextlib import suppress

from retinue.app.retinue import Retinue
from retinue.cli.output.format import clean
from retinue.core.commands import Decision
from retinue.core.errors import StoreError
from retinue.core.ids import DriverId


class Presence:
    """A chat among those that have its session open; the others are known by the drivers of their processes.

    A chat that crashed leaves its name behind. Its driver is dead then, and whoever looks next takes it away.
    """

    def __init__(self, retinue: Retinue) -> None:
        self._supervisor = retinue.supervisor
        self._key_value = retinue.supervisor.key_value
        self._session = retinue.session_id
        self._space = f"chat/open/{self._session}"
        self._known: frozenset[DriverId] = frozenset()

    async def come(self) -> bool:
        """Say that this chat is there; whether others are."""
        me = self._me
        await self._key_value.change(self._space, lambda key_value: Decision(b"", puts={me: b""}))
        self._known = await self._others()
        return bool(self._known)

    async def news(self) -> str | None:
        """A line about chats that came since this was last asked."""
        before, self._known = self._known, await self._others()
        if self._known <= before:
            return None
        return (
            f"warning: session {clean(self._session)} was opened by another process as well; "
            "neither chat hears what is said in the other"
        )

    async def go(self) -> None:
        """Say that this chat is over."""
        me = self._me
        with suppress(StoreError):
            await self._key_value.change(self._space, lambda key_value: Decision(b"", drops=(me,)))

    @property
    def _me(self) -> DriverId:
        driver_id = self._supervisor.driver_id
        assert driver_id is not None  # a chat is held in an open retinue
        return driver_id

    async def _others(self) -> frozenset[DriverId]:
        there = frozenset(await self._key_value.look(self._space))
        # Read after the namespace: the chats in it were alive then, so one whose driver is missing here is gone.
        living = await self._supervisor.drivers.living()
        if gone := there - living:
            await self._key_value.change(self._space, lambda key_value: Decision(b"", drops=tuple(gone)))
        return (there & living) - {self._me}
