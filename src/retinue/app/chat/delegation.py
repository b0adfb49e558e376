"""The delegation switch of a chat: /subagents, words in a prompt, and the settings turn it on and off."""

from __future__ import annotations

from dataclasses import dataclass

from retinue.app.settings_file import dialect_settings
from retinue.config.settings import Settings

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
"""A prompt that contains any of these asks for delegation."""

DEFAULT = ("xzatoma",)
"""The dialects of a chat without --dialect."""

_ARGUMENTS = {"on": True, "enable": True, "off": False, "disable": False}


@dataclass(slots=True, kw_only=True)
class Delegation:
    """The delegation switch of one chat.

    >>> switch = Delegation()
    >>> switch.set(""), switch.dialects
    ('Subagent delegation enabled for subsequent requests', ('xzatoma',))
    >>> switch.set("off"), switch.dialects
    ('Subagent delegation disabled', ())
    """

    chosen: tuple[str, ...] = DEFAULT
    is_on: bool = False
    by_words: bool = True
    """Whether words in a prompt switch it on; not with `--dialect none`."""

    @property
    def dialects(self) -> tuple[str, ...]:
        """The dialects of the next run."""
        return self.chosen if self.is_on else ()

    def set(self, argument: str) -> str:
        """Apply the argument of `/subagents`; an empty one toggles. The message for the user; raises ValueError."""
        argument = argument.strip().lower()
        if argument and argument not in _ARGUMENTS:
            raise ValueError(f"{COMMAND} does not take {argument!r}: it is {COMMAND} on, {COMMAND} off or {COMMAND}")
        self.is_on = _ARGUMENTS.get(argument, not self.is_on)
        return ENABLED if self.is_on else DISABLED

    def enable_by(self, prompt: str) -> str | None:
        """Switch it on if the prompt asks for it; the message for the user in that case."""
        if self.is_on or not self.by_words or not asks_for_delegation(prompt):
            return None
        self.is_on = True
        return f"{ENABLED} (your words ask for it; {COMMAND} off ends it)"


def delegation_for(dialects: tuple[str, ...] | None, settings: Settings) -> Delegation:
    """The switch at the start of a chat: on if a dialect is named, or if the settings say so; () is no dialect."""
    section = dialect_settings(settings).get("xzatoma")
    if dialects is None:
        return Delegation(is_on=bool(getattr(section, "chat_enabled", False)))
    return Delegation(chosen=dialects or DEFAULT, is_on=bool(dialects), by_words=bool(dialects))


def asks_for_delegation(prompt: str) -> bool:
    """Whether a prompt contains words that ask for delegation.

    >>> asks_for_delegation("Use agents for this."), asks_for_delegation("Look at the user agent.")
    (True, False)
    """
    lowered = prompt.lower()
    return any(words in lowered for words in WORDS)
