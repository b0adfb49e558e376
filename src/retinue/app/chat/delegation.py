"""Whether the model of a chat may delegate: what switches it on and off, and the words that are said about it."""

from __future__ import annotations

from dataclasses import dataclass

from retinue.dialects import registry
from retinue.dialects.base import ChatDelegation

COMMAND = "/subagents"

_ARGUMENTS = {"on": True, "enable": True, "off": False, "disable": False}


@dataclass(slots=True, kw_only=True)
class Delegation:
    """The switch of one chat.

    >>> switch = Delegation()
    >>> switch.turn(""), switch.dialects == (registry.CHAT,)
    ('Subagent delegation enabled for subsequent requests', True)
    >>> switch.turn("off"), switch.dialects
    ('Subagent delegation disabled', ())
    """

    chosen: tuple[str, ...] = (registry.CHAT,)
    is_on: bool = False
    hears_words: bool = True
    """Whether words in a prompt switch it on; not where somebody said `--dialect none`."""

    @property
    def dialects(self) -> tuple[str, ...]:
        """What the next run is offered."""
        return self.chosen if self.is_on else ()

    def turn(self, argument: str) -> str:
        """Do what `/subagents` was told, which without an argument is the opposite of now; raises ValueError."""
        argument = argument.strip().lower()
        if argument and argument not in _ARGUMENTS:
            raise ValueError(f"{COMMAND} does not take {argument!r}: it is {COMMAND} on, {COMMAND} off or {COMMAND}")
        self.is_on = _ARGUMENTS.get(argument, not self.is_on)
        return texts().enabled if self.is_on else texts().disabled

    def hear(self, prompt: str) -> str | None:
        """Switch it on if the prompt asks for it; what is to be said about that."""
        if self.is_on or not self.hears_words or not asks_for_delegation(prompt):
            return None
        self.is_on = True
        return f"{texts().enabled} (your words ask for it; {COMMAND} off ends it)"


def texts() -> ChatDelegation:
    """The texts about delegation, and the words that ask for it; whatever dialect a chat uses."""
    chat = registry.entry(registry.CHAT).chat
    assert chat is not None
    return chat


def asks_for_delegation(prompt: str) -> bool:
    """Whether the words of a prompt ask for it.

    >>> asks_for_delegation("Use agents for this."), asks_for_delegation("Look at the user agent.")
    (True, False)
    """
    lowered = prompt.lower()
    return any(words in lowered for words in texts().words)
