"""Other processes that have a chat of the same session open; the chats do not see each other's input."""

from __future__ import annotations

from contextlib import suppress

from retinue.app.retinue import Retinue
from retinue.core.commands import Decision
from retinue.core.errors import StoreError
from retinue.core.ids import DriverId


class OpenChats:
    """The open chats of a session, registered by the driver ids of their processes.

    A crashed chat leaves its entry behind; the next lookup finds its driver dead and removes the entry.
    """

    def __init__(self, retinue: Retinue) -> None:
        self._supervisor = retinue.supervisor
        self._key_value = retinue.supervisor.key_value
        self._session = retinue.session_id
        self._space = f"chat/open/{self._session}"
        self._known: frozenset[DriverId] = frozenset()

    async def register(self) -> bool:
        """Add this chat; whether there are others."""
        me = self._me
        await self._key_value.change(self._space, lambda key_value: Decision(b"", puts={me: b""}))
        self._known = await self._others()
        return bool(self._known)

    async def has_new(self) -> bool:
        """Whether other chats were opened since the last look."""
        before, self._known = self._known, await self._others()
        return not self._known <= before

    async def unregister(self) -> None:
        me = self._me
        with suppress(StoreError):
            await self._key_value.change(self._space, lambda key_value: Decision(b"", drops=(me,)))

    @property
    def _me(self) -> DriverId:
        driver_id = self._supervisor.driver_id
        assert driver_id is not None  # a chat runs in an open retinue
        return driver_id

    async def _others(self) -> frozenset[DriverId]:
        there = frozenset(await self._key_value.look(self._space))
        # Read after the key-value namespace: a registered driver was alive then, so one that is missing here is dead.
        living = await self._supervisor.drivers.living()
        if gone := there - living:
            await self._key_value.change(self._space, lambda key_value: Decision(b"", drops=tuple(gone)))
        return (there & living) - {self._me}
