"""Options that a server does not want: it says so once, and is asked without them from then on.

An option is known by its path in the request, such as `reasoning.effort`. What carries the conversation (the model, the
messages, the tools) is no option, and is never left out.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Iterator, Mapping
from functools import lru_cache

import msgspec

from retinue.core.errors import ProviderError
from retinue.providers.http_errors import Refusal

NONE: frozenset[str] = frozenset()

_DOES_NOT_WANT = re.compile(
    r"unsupported|not (?:be )?support|unrecognized|unknown|unexpected|not (?:allowed|permitted|available|enabled)|extra"
    r"|invalid|only the default|incompatible|unavailable|cannot find field",
    re.IGNORECASE,
)
_OUT_OF_RANGE = re.compile(
    r"above|below|exceed|too (?:large|big|high|low|small|long)|at (?:most|least)|(?:less|greater|more) than|[<>]=",
    re.IGNORECASE,
)
"""Whoever asks for too much has to be told, and not be given as much as there is."""

_ABOUT_A_SCHEMA = re.compile(r"invalid (?:json )?schema", re.IGNORECASE)
_REFUSES_ONE = re.compile(r"unsupported|unknown_parameter|previous_response_not_found")
_HUMP = re.compile(r"(?<=[a-z])(?=[A-Z])")
_INDEX = re.compile(r"\[\d*\]")
_UNMISTAKABLE = re.compile(r"[._A-Z]|temperature")


class UnsupportedOptions:
    """What each model of a provider does not want, as far as it has said."""

    def __init__(self) -> None:
        self._by_model: dict[str, frozenset[str]] = {}

    def of(self, model: str) -> frozenset[str]:
        """The options to leave out."""
        return self._by_model.get(model, NONE)

    def learn(self, model: str, sent: Iterable[str], failure: ProviderError) -> str | None:
        """Which of the options that were sent the failure names, if any. It is remembered, and not sent again, unless
        it is only this one schema that the server cannot use.
        """
        named = complained_of(sent, failure)
        if named is not None and not _ABOUT_A_SCHEMA.search(str(failure)):
            self._by_model[model] = self.of(model) | {named}
        return named


def is_wanted(option: str, unwanted: Collection[str]) -> bool:
    """Whether neither the option nor what it is a part of was refused.

    >>> is_wanted("reasoning.effort", {"temperature"}), is_wanted("reasoning.effort", {"reasoning"})
    (True, False)
    """
    return not unwanted or not any(path in unwanted for path in _paths(option))


def only_wanted(options: dict[str, object], unwanted: Collection[str]) -> dict[str, object]:
    """The options but for those that were refused."""
    return {option: value for option, value in options.items() if is_wanted(option, unwanted)} if unwanted else options


def fields(options: Mapping[str, object]) -> bytes:
    """Options as fields of a JSON object, each after a comma.

    >>> fields({"temperature": 0.5, "reasoning.effort": "high", "reasoning.summary": "detailed"})
    b',"temperature":0.5,"reasoning":{"effort":"high","summary":"detailed"}'
    """
    return b"," + msgspec.json.encode(nested(options))[1:-1] if options else b""


def nested(options: Mapping[str, object]) -> dict[str, object]:
    """Options as objects within objects."""
    found: dict[str, object] = {}
    for option, value in options.items():
        outer, dot, inner = option.partition(".")
        if dot:
            within = found.setdefault(outer, {})
            assert isinstance(within, dict)
            within[inner] = value
        else:
            found[outer] = value
    return found


def complained_of(options: Iterable[str], failure: ProviderError) -> str | None:
    """The option that a server refuses a request for: of those that were sent, the one it names first, or the part of
    the request that holds it.

    >>> wrong = "Unsupported parameter: 'max_tokens' is not supported with this model. Use 'max_completion_tokens'."
    >>> complained_of(["temperature", "max_tokens"], ProviderError(wrong, fault="bad_request", status=400))
    'max_tokens'
    >>> complained_of(["temperature"], ProviderError("messages: too short", fault="bad_request", status=400)) is None
    True
    """
    refusal = failure if isinstance(failure, Refusal) else Refusal(str(failure), fault=failure.fault)
    if failure.fault != "bad_request" or failure.status not in (400, 404, 422):
        return None
    if not _REFUSES_ONE.search(refusal.kind) and not _DOES_NOT_WANT.search(refusal.said):
        return None
    if _OUT_OF_RANGE.search(refusal.said):
        return None
    meant = {name: option for each in options for name, option in _names(each)}
    pointed_at = next((path for path in reversed(_paths(_INDEX.sub("", refusal.param))) if path in meant), None)
    if pointed_at:
        return meant[pointed_at]
    named = [(found.start("name"), -len(name), name) for name in meant if (found := _said(name).search(refusal.said))]
    return meant[min(named)[2]] if named else None


def _paths(option: str) -> list[str]:
    """An option and all that it is a part of, the widest first."""
    parts = option.split(".")
    return [".".join(parts[:end]) for end in range(1, len(parts) + 1)]


def _names(option: str) -> Iterator[tuple[str, str]]:
    """What an option may be called, and what is refused by it."""
    *wider, own = _paths(option)
    for path in (*wider, own):
        yield path, path
        if path.endswith("Config"):
            yield path.removesuffix("Config"), path
    if wider:
        yield option.rpartition(".")[2], option


@lru_cache(maxsize=256)
def _said(name: str) -> re.Pattern[str]:
    """How a server names an option. A word of the language counts only where it is pointed at."""
    spelled = re.escape(_HUMP.sub("_", name)).replace("_", "_?")
    if _UNMISTAKABLE.search(name):
        return re.compile(rf"\b(?P<name>{spelled})\b", re.IGNORECASE)
    here = rf"(?P<name>(?<=[\"'`]){spelled}(?=[\"'`])|(?:(?<=^)|(?<=: )){spelled}(?=[:.]\S*\s)"
    return re.compile(rf"{here}|\b{spelled}(?= (?:\w+ )?(?:is|are) not ))", re.IGNORECASE)
