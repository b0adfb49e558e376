"""Calls that a person has approved for all runs in a folder, in a file of the state folder.

No tool of an agent can read or write the state folder; a program without a sandbox can, as it can do anything else.
"""

from __future__ import annotations

import os
from contextlib import suppress
from pathlib import Path

import msgspec
from msgspec import Struct

from retinue.local.bounded_file import MIB, read_bounded
from retinue.local.private_folder import create_private

FILE = "approved_calls.json"


class ApprovedCall(Struct, frozen=True):
    """Calls of one tool and group, by one agent, with the same reason for asking, in runs of one folder."""

    workspace: str
    agent: str
    tool: str
    group: str
    reason: str


class ApprovedCalls:
    """The approved calls in the file. A file that cannot be read approves nothing."""

    def __init__(self, home: Path) -> None:
        self._path = home / FILE

    def load(self) -> list[ApprovedCall]:
        """All approved calls."""
        try:
            return msgspec.json.decode(read_bounded(self._path, MIB), type=list[ApprovedCall])
        except (OSError, msgspec.MsgspecError):
            return []

    def add(self, call: ApprovedCall) -> None:
        """Keep an approval; raises `OSError` if the file cannot be written."""
        create_private(self._path.parent)
        kept = [*(each for each in self.load() if each != call), call]
        new = self._path.with_name(f"{FILE}.{os.getpid()}")
        with suppress(FileNotFoundError):
            new.unlink()
        file = os.open(new, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
        with open(file, "wb") as written:
            written.write(msgspec.json.format(msgspec.json.encode(kept), indent=2) + b"\n")
        new.replace(self._path)
