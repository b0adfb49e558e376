"""The delegation switch of a chat: /subagents, words in a prompt, and the settings turn it on and off."""

from __future__ import annotations

from dataclasses import dataclass

from retinue.app.launch.start import dialects_for
from retinue.app.settings_file import dialect_settings
from retinue.config.settings import Settings
from retinue.dialects import registry
from retinue.dialects.base import ChatDelegation

COMMAND = "/subagents"

_ARGUMENTS = {"on": True, "enable": True, "off": False, "disable": False}


@dataclass(slots=True, kw_only=True)
class Delegation:
    """The delegation switch of one chat.

    >>> switch = Delegation()
    >>> switch.set(""), switch.dialects == (registry.CHAT,)
    ('Subagent delegation enabled for subsequent requests', True)
    >>> switch.set("off"), switch.dialects, switch.enable_by("Look at the user agent.")
    ('Subagent delegation disabled', (), None)
    >>> switch.enable_by("Use agents for this.")
    'Subagent delegation enabled for subsequent requests (your input asks for it; /subagents off disables it)'
    """

    chosen: tuple[str, ...] = (registry.CHAT,)
    is_on: bool = False
    by_words: bool = True
    """Whether words in a prompt switch it on; not with `--dialect none`."""

    @property
    def dialects(self) -> tuple[str, ...]:
        return self.chosen if self.is_on else ()

    def set(self, argument: str) -> str:
        """Apply the argument of `/subagents`; an empty one toggles. The message for the user; raises ValueError."""
        argument = argument.strip().lower()
        if argument and argument not in _ARGUMENTS:
            raise ValueError(f"{COMMAND} does not take {argument!r}: write {COMMAND} on, {COMMAND} off or {COMMAND}")
        self.is_on = _ARGUMENTS.get(argument, not self.is_on)
        return texts().enabled if self.is_on else texts().disabled

    def enable_by(self, prompt: str) -> str | None:
        """Switch it on if the prompt asks for it; the message for the user in that case."""
        lowered = prompt.lower()
        if self.is_on or not self.by_words or not any(words in lowered for words in texts().words):
            return None
        self.is_on = True
        return f"{texts().enabled} (your input asks for it; {COMMAND} off disables it)"


def texts() -> ChatDelegation:
    """The texts about delegation, and the words that ask for it; whatever dialect a chat uses."""
    chat = registry.entry(registry.CHAT).chat
    assert chat is not None
    return chat


def delegation_for(dialects: tuple[str, ...] | None, settings: Settings) -> Delegation:
    """The switch at the start of a chat: on if a dialect is named, or if the settings say so; () is no dialect.

    With agents in the settings it is on as well, so that the model can delegate to them.
    """
    if dialects is None:
        dialects = settings.default_dialects
    if dialects is None:
        starts_on = texts().starts_on(dialect_settings(settings)[registry.CHAT])
        own = () if starts_on else dialects_for(None, settings)
        return Delegation(chosen=own, is_on=True) if own else Delegation(is_on=starts_on)
    return Delegation(chosen=dialects or (registry.CHAT,), is_on=bool(dialects), by_words=bool(dialects))
