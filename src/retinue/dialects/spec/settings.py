"""The settings of `spec`, `[spec]`: the extensions that are switched on, and limits of subagents."""

from __future__ import annotations

from typing import Annotated, Final

from msgspec import Meta, Struct

from retinue.core.budget import Caps, Window
from retinue.core.commands import SessionRow
from retinue.core.run import LimitMet
from retinue.dialects.shared_context import EXTENSIONS as SHARED_CONTEXT_EXTENSIONS

SECTION = "spec"

SUBAGENT_EXTENSIONS: Final = ("cancel", "progress", "extends", "depends_on", "redefine", "budgets", "wait", "hint")
EXTENSIONS: Final = (*SUBAGENT_EXTENSIONS, *SHARED_CONTEXT_EXTENSIONS)
"""What the documents anticipate beyond their core, by the names in settings; all are on by default."""

FOREVER = 100 * 365.25 * 86400.0
"""Seconds that no session lasts: its budget is a window of this length."""

Count = Annotated[int, Meta(ge=1, le=2**31 - 1)]
Tokens = Annotated[int, Meta(ge=1, le=2**62)]


class SpecSettings(Struct, frozen=True, kw_only=True):
    """Settings of the dialect `spec`, the section `[spec]` of a settings file.

    Pass them as `retinue.open(dialect_settings={"spec": ...})`.

    >>> sorted(SpecSettings(extensions=("wait", "cancel"), max_running=2).on)
    ['cancel', 'wait']
    """

    extensions: Annotated[
        tuple[str, ...],
        Meta(description="Extensions of the document's core; all by default.", examples=[["wait", "cancel"]]),
    ] = EXTENSIONS
    max_running: Annotated[Count, Meta(description="Running tasks of a session.", examples=[5])] = 5
    max_input_tokens: Annotated[
        Tokens | None,
        Meta(description="Input tokens that all subagents of a session may use together.", examples=[1_000_000]),
    ] = None
    max_output_tokens: Annotated[
        Tokens | None,
        Meta(description="Output tokens that all subagents of a session may use together.", examples=[100_000]),
    ] = None

    @property
    def on(self) -> frozenset[str]:
        """The extensions that are switched on."""
        return frozenset(self.extensions)

    @property
    def has_budget(self) -> bool:
        """Whether the subagents of a session share a budget."""
        return self.max_input_tokens is not None or self.max_output_tokens is not None

    def budget_of(self, session: SessionRow) -> Window:
        """The budget that the subagents of a session share; a new session under an old name has a new one."""
        caps = Caps(input=self.max_input_tokens, output=self.max_output_tokens)
        return Window(f"spec/{session.session_id}/{session.created_at}", FOREVER, caps)

    def is_budget(self, limit: LimitMet) -> bool:
        """Whether the limit that stopped a run was a token limit: its own, or that of its session.

        >>> SpecSettings(max_input_tokens=1000).is_budget(LimitMet("window", 990, 1000))
        True
        """
        if limit.reason == "window":  # a window of its agent limits money, not tokens
            if limit.dimension is not None:
                return limit.dimension != "cost"
            return limit.limit in (self.max_input_tokens, self.max_output_tokens)
        return limit.reason == "max_tokens"


DEFAULTS = SpecSettings()


def mistakes(settings: SpecSettings) -> list[tuple[str, str]]:
    """The errors in the settings: each key with its message.

    >>> mistakes(DEFAULTS)
    []
    >>> mistakes(SpecSettings(extensions=("undo",)))[0][1].partition(";")[0]
    "unknown extension 'undo'"
    """
    return [
        ("extensions", f"unknown extension '{name}'; known: {', '.join(EXTENSIONS)}")
        for name in settings.extensions
        if name not in EXTENSIONS
    ]
