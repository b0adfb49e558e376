"""What stands in the tables for events, items and outcomes: their bytes, or for large ones the name of a blob."""

from __future__ import annotations

import sqlite3

from retinue.core.events import Event
from retinue.core.mail import Item
from retinue.core.run import Outcome
from retinue.store.codec import Codec, blob_name, checked_blob, split_large


class Bodies:
    """Bodies on one connection, inside the transaction of whoever calls."""

    __slots__ = ("_do", "_encode")

    def __init__(self, connection: sqlite3.Connection, codec: Codec) -> None:
        self._do = connection.execute
        self._encode = codec.encode

    def of(self, value: Event | Item | Outcome) -> bytes:
        """What stands for a value; a large one is stored with this."""
        body = self._encode(value)
        stored, digest = split_large(body)
        if digest is not None:
            self.keep(digest, body)
        return stored

    def keep(self, digest: str, body: bytes) -> None:
        """Store a blob, if it is not there."""
        self._do("INSERT OR IGNORE INTO blobs (digest, body) VALUES (?, ?)", (digest, body))

    def whole(self, stored: bytes) -> bytes:
        """The bytes of a value, whatever stands for it."""
        digest = blob_name(stored)
        if digest is None:
            return stored
        row = self._do("SELECT body FROM blobs WHERE digest = ?", (digest,)).fetchone()
        return checked_blob(digest, row[0] if row else None)
