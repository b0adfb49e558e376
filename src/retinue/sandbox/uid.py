"""Who a program is when retinue runs as root: an unused user, because the kernel limits no processes of root.

The user gets its rights on the granted folders back inside a user namespace of its own. Every id of ours means the same
there, and two capabilities that reach no further than the namespace (and so than what is mounted in it) open files of
any owner: `CAP_DAC_OVERRIDE` to read and write them, `CAP_FOWNER` to change their modes. Folders that are mounted
read-only stay so. What a program makes belongs to the unused user.
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
"""Users that no distribution hands out: above all system users and below those of user namespaces, or, where there are
no more than 65536, the last ones below `nobody`."""

STEP = 61

CAPABILITIES = ("CAP_DAC_OVERRIDE", "CAP_FOWNER")


class Users:
    """Hands out unused users, a new one for each program, round and round."""

    def __init__(self) -> None:
        # Each process of ours begins at another place: programs of two are not to be counted for each other.
        self._next = os.getpid() * STEP
        self._taken: Counter[int] = Counter()

    @contextmanager
    def one(self) -> Generator[int | None]:
        """A user for one program; None if we are not root.

        None too where root is the only user there is (a user namespace with one id): that root is somebody else
        outside, and the kernel does limit that one's processes.
        """
        users = _unused() if os.geteuid() == 0 else range(0)
        if not users:
            yield None
            return
        user = self._free(users)
        self._taken[user] += 1
        try:
            yield user
        finally:
            self._taken[user] -= 1

    def _free(self, users: range) -> int:
        """The next that nobody has. Not the last one again: what is left of a program, until it is buried, counts."""
        for _ in users:
            self._next += 1
            user = users[self._next % len(users)]
            if not self._taken[user] and not _named(user):
                return user
        return users[self._next % len(users)]


def map_ids(pid: int) -> None:
    """Let every id mean in the user namespace of a waiting process what it means here."""
    for kind in ("uid_map", "gid_map"):
        lines = [line.split() for line in Path(f"/proc/self/{kind}").read_text("ascii").splitlines()]
        # One write: the kernel takes a map once.
        with open(f"/proc/{pid}/{kind}", "wb", buffering=0) as file:
            file.write("".join(f"{ours} {ours} {count}\n" for ours, _, count in lines).encode("ascii"))


@cache
def _unused() -> range:
    return next((users for users in UNUSED if _mapped(users, "uid_map") and _mapped(users, "gid_map")), range(0))


def _mapped(users: range, kind: str) -> bool:
    lines = (line.split() for line in Path(f"/proc/self/{kind}").read_text("ascii").splitlines())
    return any(int(first) <= users[0] and users[-1] < int(first) + int(count) for first, _, count in lines)


@cache
def _named(user: int) -> bool:
    try:
        pwd.getpwuid(user)
    except KeyError:
        return False
    return True
