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
class DelegationSwitch:
    """The delegation switch of one chat.

    >>> switch = DelegationSwitch(by_words=True)
    >>> switch.set(""), switch.dialects == (registry.CHAT,)
    ('Subagent delegation enabled for subsequent requests', True)
    >>> switch.set("off"), switch.dialects, switch.enable_by("Look at the user agent.")
    ('Subagent delegation disabled', (), None)
    >>> switch.enable_by("Use agents for this.")
    'Subagent delegation enabled for subsequent requests (your input asks for it; /subagents off disables it)'
    """

    chosen: tuple[str, ...] = (registry.CHAT,)
    is_on: bool = False
    by_words: bool = False
    """Whether words in a prompt switch it on: only where a dialect is chosen or configured."""

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


def delegation_for(dialects: tuple[str, ...] | None, settings: Settings) -> DelegationSwitch:
    """The switch at the start of a chat: on if a dialect is named, or if the settings say so; () is no dialect.

    With agents in the settings it is on as well, so that the model can delegate to them. With neither a dialect, agents
    nor settings of the dialect of chats, no word of a prompt switches it on: the prompt may speak of other agents.
    """
    if dialects is None:
        dialects = settings.default_dialects
    if dialects is None:
        configured = dialect_settings(settings)[registry.CHAT]
        starts_on = texts().starts_on(configured)
        if not starts_on and (own := dialects_for(None, settings)):
            return DelegationSwitch(chosen=own, is_on=True, by_words=True)
        return DelegationSwitch(is_on=starts_on, by_words=configured != type(configured)())
    return DelegationSwitch(chosen=dialects or (registry.CHAT,), is_on=bool(dialects), by_words=bool(dialects))
