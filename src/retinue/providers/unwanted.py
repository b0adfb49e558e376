"""Options that a server does not want: it says so once, and is asked without them from then on."""

from __future__ import annotations

import re
from collections.abc import Iterable

from retinue.core.errors import ProviderError

NONE: frozenset[str] = frozenset()

_DOES_NOT_WANT = re.compile(
    r"unsupported|not (?:be )?support|unrecognized|unknown|unexpected|not (?:allowed|permitted|available)|extra"
    r"|invalid|only the default|incompatible",
    re.IGNORECASE,
)


class Unwanted:
    """What each model of a provider does not want, as far as it has said."""

    def __init__(self) -> None:
        self._by_model: dict[str, frozenset[str]] = {}

    def of(self, model: str) -> frozenset[str]:
        """The options to leave out."""
        return self._by_model.get(model, NONE)

    def learn(self, model: str, sent: Iterable[str], failure: ProviderError) -> bool:
        """Whether the failure names one of the options that were sent; it is remembered, and not sent again."""
        named = complained_of(sent, failure)
        if named is None:
            return False
        self._by_model[model] = self.of(model) | {named}
        return True


def complained_of(options: Iterable[str], failure: ProviderError) -> str | None:
    """The option that a server refuses a request for: of those that were sent, the one it names first.

    >>> wrong = "Unsupported parameter: 'max_tokens' is not supported with this model. Use 'max_completion_tokens'."
    >>> complained_of(["temperature", "max_tokens"], ProviderError(wrong, fault="bad_request", status=400))
    'max_tokens'
    >>> complained_of(["temperature"], ProviderError("messages: too short", fault="bad_request", status=400)) is None
    True
    """
    words = str(failure)
    if failure.fault != "bad_request" or failure.status not in (400, 422) or not _DOES_NOT_WANT.search(words):
        return None
    named = {found.start(): option for option in options if (found := re.search(rf"\b{option}\b", words))}
    return named[min(named)] if named else None
