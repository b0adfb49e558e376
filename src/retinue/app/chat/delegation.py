"""Whether the model of a chat may delegate: what switches it on and off, and the words that are said about it."""

from __future__ import annotations

from dataclasses import dataclass

ENABLED = "Subagent delegation enabled for subsequent requests"
DISABLED = "Subagent delegation disabled"
COMMAND = "/subagents"

WORDS = (
    "subagent",
    "delegate",
    "spawn agent",
    "parallel task",
    "parallel agent",
    "agent delegation",
    "use agent",
)
"""A prompt with any of these in it asks for delegation."""

DEFAULT = ("xzatoma",)
"""The dialects of a chat, when nobody names one."""

_ARGUMENTS = {"on": True, "enable": True, "off": False, "disable": False}


@dataclass(slots=True, kw_only=True)
class Delegation:
    """The switch of one chat.

    >>> switch = Delegation()
    >>> switch.turn(""), switch.dialects
    ('Subagent delegation enabled for subsequent requests', ('xzatoma',))
    >>> switch.turn("off"), switch.dialects
    ('Subagent delegation disabled', ())
    """

    chosen: tuple[str, ...] = DEFAULT
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
        return ENABLED if self.is_on else DISABLED

    def hear(self, prompt: str) -> str | None:
        """Switch it on if the prompt asks for it; what is to be said about that."""
        if self.is_on or not self.hears_words or not asks_for_delegation(prompt):
            return None
        self.is_on = True
        return f"{ENABLED} (your words ask for it; {COMMAND} off ends it)"


def asks_for_delegation(prompt: str) -> bool:
    """Whether the words of a prompt ask for it.

    >>> asks_for_delegation("Use agents for this."), asks_for_delegation("Look at the user agent.")
    (True, False)
    """
    lowered = prompt.lower()
    return any(words in lowered for words in WORDS)
