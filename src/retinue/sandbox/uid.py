"""User ids of programs when retinue runs as root: an unused uid each, because the kernel limits no processes of root.

In its user namespace all ids mean the same as outside, and two capabilities give the program access to the granted
folders regardless of owner: `CAP_DAC_OVERRIDE` to read and write files, `CAP_FOWNER` to change their modes. They do not
reach beyond the namespace and its mounts, and folders that are mounted read-only stay so. New files belong to the
unused uid.
"""

from __future__ import annotations

import os
import pwd
from collections import Counter
from collections.abc import Generator
from contextlib import contextmanager
from functools import cache
from pathlib import Path

UNUSED = (range(65536, 100_000), range(65520, 65534))
"""Uids that no distribution assigns: above system users and below those of user namespaces, or, where there are no
more than 65536, the last ones below the user `nobody`."""

STEP = 61

CAPABILITIES = ("CAP_DAC_OVERRIDE", "CAP_FOWNER")


class Users:
    """Assigns unused uids to programs, in rotation."""

    def __init__(self) -> None:
        # Each process starts elsewhere, so that the kernel does not count programs of two processes together.
        self._next = os.getpid() * STEP
        self._taken: Counter[int] = Counter()

    @contextmanager
    def one(self) -> Generator[int | None]:
        """A uid for one program; None if this process is not root.

        Also None in a user namespace with a single id: that root is an ordinary user outside, whose processes the
        kernel does limit.
        """
        users = _unused() if os.geteuid() == 0 else range(0)
        if not users:
            yield None
            return
        user = self._next_uid(users)
        self._taken[user] += 1
        try:
            yield user
        finally:
            self._taken[user] -= 1

    def _next_uid(self, users: range) -> int:
        """The next unused uid. Not the last one again: processes of its program count until they are reaped."""
        for _ in users:
            self._next += 1
            user = users[self._next % len(users)]
            if not self._taken[user] and not _exists(user):
                return user
        return users[self._next % len(users)]


def map_ids(pid: int) -> None:
    """Map every id in the user namespace of a blocked process to itself."""
    for kind in ("uid_map", "gid_map"):
        lines = [line.split() for line in Path(f"/proc/self/{kind}").read_text("ascii").splitlines()]
        # A single write: the kernel accepts a map only once.
        with open(f"/proc/{pid}/{kind}", "wb", buffering=0) as file:
            file.write("".join(f"{ours} {ours} {count}\n" for ours, _, count in lines).encode("ascii"))


@cache
def _unused() -> range:
    return next((users for users in UNUSED if _mapped(users, "uid_map") and _mapped(users, "gid_map")), range(0))


def _mapped(users: range, kind: str) -> bool:
    lines = (line.split() for line in Path(f"/proc/self/{kind}").read_text("ascii").splitlines())
    return any(int(first) <= users[0] and users[-1] < int(first) + int(count) for first, _, count in lines)


@cache
def _exists(user: int) -> bool:
    try:
        pwd.getpwuid(user)
    except KeyError:
        return False
    return True
