"""How a retinue was opened: kept with every root run, so that it can be resumed from any folder without a flag."""

from __future__ import annotations

import msgspec
from msgspec import Struct

from retinue.core.agent import Agent, Brief
from retinue.providers.catalog import Contact


class Setup(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """What another process needs to go on: whom to ask, which tools and agents there were, and where.

    Headers of a provider may be secret and are left out; they are read from the settings file again.
    """

    model: str = ""
    contacts: tuple[Contact, ...] = ()
    dialects: tuple[str, ...] = ()
    agents: tuple[Agent, ...] = ()
    tool_modules: tuple[str, ...] = ()
    config: str = ""
    workspace: str = ""
    no_sandbox: bool = False
    """Whether programs of the tools were allowed to run without a sandbox."""

    def text(self) -> str:
        """As it is kept in a brief."""
        bare = tuple(msgspec.structs.replace(each, headers={}) for each in self.contacts)
        return msgspec.json.encode(msgspec.structs.replace(self, contacts=bare)).decode()


def setup_of(brief: Brief) -> Setup | None:
    """The setup that a root run was started with, if it was told one."""
    return msgspec.json.decode(brief.setup, type=Setup) if brief.setup else None
