"""Request options that a model rejected (HTTP 400): remembered per model and left out from then on.

An option is named by its path in the request, such as `reasoning.effort`. What carries the conversation (the model, the
messages, the tools) is not an option, and is never left out.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Iterator, Mapping
from functools import lru_cache
from typing import cast

import msgspec

from retinue.core.errors import ProviderError
from retinue.core.model_options import EFFORTS, NO_REQUEST_OPTIONS, Effort, RequestOptions
from retinue.providers.http_errors import ErrorResponse

NONE: frozenset[str] = frozenset()

_UNSUPPORTED = re.compile(
    r"unsupported|(?:not|doesn't) (?:be )?support|unrecognized|unknown|unexpected"
    r"|not (?:allowed|permitted|available|enabled)|extra|invalid|only the default|incompatible|unavailable"
    r"|cannot find field",
    re.IGNORECASE,
)
_OUT_OF_RANGE = re.compile(
    r"above|below|exceed|too (?:large|big|high|low|small|long)|at (?:most|least)|(?:less|greater|more) than|[<>]=",
    re.IGNORECASE,
)
"""A value out of range is an error for the caller; the option is not left out silently."""

RESPONSE_FORMAT = "response_format"
RESULT_MEDIA = "result_media"
"""Images and files in results of calls; they are left out if the model takes none."""
_MEDIA = re.compile(
    r"image|multimodal|vision|mmproj|audio|media|input_file|document|\bpdf\b|content must be a string|expected `text`"
    r"|content\b.{0,60}valid string",
    re.IGNORECASE | re.DOTALL,
)
_NO_SUCH_MEDIA = re.compile(
    r"support|not a multimodal|mmproj|at most 0|unknown variant|must be a string|valid string|cannot (?:read|see)"
    r"|(?:does not|doesn't) (?:accept|take|have)|only (?:accepts|takes)|text[- ]only",
    re.IGNORECASE,
)
"""An error about images, and one by which a model takes none at all; another one may be about a single image."""

_UNSUPPORTED_FORMAT = re.compile(
    r"response_format\.type'? must be|(?:not support|unsupported) (?:the )?response[ _]format"
    r"|json mode (?:cannot|is not|does not)|json mode is unavailable",
    re.IGNORECASE,
)
"""How LM Studio and Groq refuse an output format, without a word that marks the option as unsupported."""

_INVALID_SCHEMA = re.compile(r"invalid (?:json )?schema", re.IGNORECASE)
_UNSUPPORTED_KIND = re.compile(r"unsupported|unknown_parameter|previous_response_not_found")
_CAMEL_HUMP = re.compile(r"(?<=[a-z])(?=[A-Z])")
_INDEX = re.compile(r"\[\d*\]")
_UNMISTAKABLE = re.compile(r"[._A-Z]|temperature")


_VALUE_REJECTED = re.compile(
    r"supported values|unsupported value|invalid value|must be one of|one of the following|is one of|not one of"
    r"|(?:does not|doesn't|not) support.{0,40}['\"`](?:none|minimal|low|medium|high|xhigh|max)['\"`]"
    r"|(?:literal_error|input should be|expected one of|unknown variant)",
    re.IGNORECASE,
)

_LISTED = re.compile(
    r"(?:supported values|must be one of|one of the following|is one of|input should be|expected one of)[^\n]*",
    re.IGNORECASE,
)
_QUOTED = re.compile(rf"\b({'|'.join(EFFORTS)})\b")


class UnsupportedOptions:
    """The options that each model of a provider has rejected so far."""

    def __init__(self) -> None:
        self._by_model: dict[str, frozenset[str]] = {}

    def for_model(self, model: str) -> frozenset[str]:
        return self._by_model.get(model, NONE)

    def learn(self, model: str, sent: Iterable[str], error: ProviderError) -> str | None:
        """The sent option that the error rejects, if any; it is not sent again, unless only its schema is rejected."""
        rejected = rejected_option(sent, error)
        if rejected is None or (rejected == RESULT_MEDIA and not _NO_SUCH_MEDIA.search(str(error))):
            return rejected
        if not _INVALID_SCHEMA.search(str(error)):
            self.add(model, rejected)
        return rejected

    def add(self, model: str, option: str) -> None:
        self._by_model[model] = self.for_model(model) | {option}


def is_supported(option: str, unsupported: Collection[str]) -> bool:
    """Whether neither the option nor an object that contains it was rejected.

    >>> is_supported("reasoning.effort", {"temperature"}), is_supported("reasoning.effort", {"reasoning"})
    (True, False)
    """
    return not unsupported or not any(path in unsupported for path in _paths(option))


def without_unsupported(options: dict[str, object], unsupported: Collection[str]) -> dict[str, object]:
    if not unsupported:
        return options
    return {option: value for option, value in options.items() if is_supported(option, unsupported)}


def encode_fields(options: Mapping[str, object], extra: RequestOptions = NO_REQUEST_OPTIONS) -> bytes:
    """Options as fields of a JSON object, each after a comma; the extra fields of a request come over them.

    >>> encode_fields({"temperature": 0.5, "reasoning.effort": "high", "reasoning.summary": "detailed"})
    b',"temperature":0.5,"reasoning":{"effort":"high","summary":"detailed"}'
    """
    fields = nested(options)
    if extra.extra_body:
        fields = merged(fields, extra.body_fields)
    return b"," + msgspec.json.encode(fields)[1:-1] if fields else b""


def merged(fields: Mapping[str, object], extra: Mapping[str, object]) -> dict[str, object]:
    """Fields with others over them, object by object.

    >>> merged({"a": {"b": 1, "c": 2}, "d": 3}, {"a": {"b": 4}, "e": 5})
    {'a': {'b': 4, 'c': 2}, 'd': 3, 'e': 5}
    """
    found = dict(fields)
    for name, value in extra.items():
        own = found.get(name)
        if isinstance(own, dict) and isinstance(value, dict):
            value = merged(cast("dict[str, object]", own), cast("dict[str, object]", value))
        found[name] = value
    return found


def nested(options: Mapping[str, object]) -> dict[str, object]:
    """Options with dotted paths as objects within objects."""
    tree: dict[str, object] = {}
    for option, value in options.items():
        outer, dot, inner = option.partition(".")
        if dot:
            within = tree.setdefault(outer, {})
            assert isinstance(within, dict)
            within[inner] = value
        else:
            tree[outer] = value
    return tree


def rejected_option(sent: Iterable[str], error: ProviderError) -> str | None:
    """The option that an error response rejects: of those sent, the first one it names, or the object around it.

    >>> message = "Unsupported parameter: 'max_tokens' is not supported with this model. Use 'max_completion_tokens'."
    >>> rejected_option(["temperature", "max_tokens"], ProviderError(message, fault="bad_request", status=400))
    'max_tokens'
    >>> rejected_option(["temperature"], ProviderError("messages: too short", fault="bad_request", status=400)) is None
    True
    """
    response = error if isinstance(error, ErrorResponse) else ErrorResponse(str(error), fault=error.fault)
    sent = tuple(sent)
    if error.fault != "bad_request" or error.status not in (400, 404, 422):
        return None
    if _UNSUPPORTED_FORMAT.search(response.server_message) and RESPONSE_FORMAT in sent:
        return RESPONSE_FORMAT
    if RESULT_MEDIA in sent and _MEDIA.search(response.server_message):
        return RESULT_MEDIA
    if not _UNSUPPORTED_KIND.search(response.kind) and not _UNSUPPORTED.search(response.server_message):
        return None
    if _OUT_OF_RANGE.search(response.server_message):
        return None
    by_name = {name: rejected for option in sent for name, rejected in _names(option)}
    param = next((path for path in reversed(_paths(_INDEX.sub("", response.param))) if path in by_name), None)
    if param:
        return by_name[param]
    named = [
        (match.start("name"), -len(name), name)
        for name in by_name
        if (match := _name_pattern(name).search(response.server_message))
    ]
    return by_name[min(named)[2]] if named else None


def _paths(option: str) -> list[str]:
    """The path of an option and of every object around it, the outermost first."""
    parts = option.split(".")
    return [".".join(parts[:end]) for end in range(1, len(parts) + 1)]


def _names(option: str) -> Iterator[tuple[str, str]]:
    """The names that an error may use for an option, each with the path that it rejects."""
    *outer, own = _paths(option)
    for path in (*outer, own):
        yield path, path
        if path.endswith("Config"):
            yield path.removesuffix("Config"), path
    if outer:
        yield option.rpartition(".")[2], option


@lru_cache(maxsize=256)
def _name_pattern(name: str) -> re.Pattern[str]:
    """A pattern for an option's name in an error message; a plain English word must be quoted or marked as a name."""
    spelled = re.escape(_CAMEL_HUMP.sub("_", name)).replace("_", "_?")
    if _UNMISTAKABLE.search(name):
        return re.compile(rf"\b(?P<name>{spelled})\b", re.IGNORECASE)
    marked = rf"(?P<name>(?<=[\"'`]){spelled}(?=[\"'`])|(?:(?<=^)|(?<=: )){spelled}(?=[:.]\S*\s)"
    return re.compile(rf"{marked}|\b{spelled}(?= (?:\w+ )?(?:is|are) not ))", re.IGNORECASE)


def rejects_value(error: ProviderError, option: str) -> bool:
    """Whether a server rejects the value of an option, and would accept another one.

    >>> message = "Unsupported value: 'reasoning_effort' does not support 'minimal' with this model."
    >>> rejects_value(ErrorResponse(message, fault="bad_request", status=400), "reasoning_effort")
    True
    """
    if not isinstance(error, ErrorResponse) or error.fault != "bad_request" or error.status not in (400, 422):
        return False
    text = f"{error.param} {error.server_message}".lower()
    name = option.rpartition(".")[2].lower().replace("thinking", "")
    return name in text and (error.kind == "unsupported_value" or _VALUE_REJECTED.search(text) is not None)


def rejected_steps(error: ProviderError, sent: str) -> tuple[Effort, ...]:
    """The steps that an error rejects: those that it does not list as supported, else the one that was sent.

    >>> message = "does not support 'minimal'. Supported values are: 'low', 'medium', and 'high'."
    >>> rejected_steps(ErrorResponse(message, fault="bad_request", status=400), "minimal")
    ('none', 'minimal', 'xhigh', 'max')
    """
    text = error.server_message if isinstance(error, ErrorResponse) else str(error)
    listed = _LISTED.search(text)
    supported = set(_QUOTED.findall(listed[0])) if listed else set[str]()
    if supported and sent not in supported:
        return tuple(step for step in EFFORTS if step not in supported)
    return tuple(step for step in EFFORTS if step == sent)
