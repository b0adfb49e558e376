"""What it means when a vendor's server says no: which fault, how long to wait, and what a person should do.

Shared by all wires, because vendors' errors look alike: a status, and a JSON object with a message somewhere in it.
Messages never hold a key: whatever looks like one is replaced.
"""

from __future__ import annotations

import re
import time
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from email.utils import parsedate_to_datetime
from math import isfinite
from typing import Any, cast

import msgspec

from retinue.core.errors import ProviderError, ProviderFault
from retinue.core.text import NOT_JSON

TELLING = 4
"""How many characters of a key tell nothing of it, where a text ends in the middle of one."""

SHOWN = 500
"""How many characters of a server's words an error repeats."""

_TOO_LONG = re.compile(
    r"context[ _]?(length|window|size)|(maximum|exceed) context|max_model_len|too many (input )?tokens"
    r"|(prompt|input|request|messages?) (is |are |was )?too (long|large)|reduce the length|string_above_max_length"
    r"|exceeds the maximum number of tokens"
)
_FILTERED = re.compile(r"content_?(filter|policy)|moderation|safety")
_NO_MONEY = re.compile(
    r"insufficient_(quota|balance|credits?)|billing|exceeded your current quota|insufficient balance|credit balance"
)
_RATE = re.compile(r"rate.?limit|too.many.requests|resource_exhausted|throttl")
_BROKEN = re.compile(r"overload|unavailable|server_error|internal|api_error|capacity")
_BUSY = re.compile(r"overload|unavailable|capacity")
_AUTH = re.compile(r"authenticat|unauthor|permission|api_?key|forbidden|credential")
_SAYS_BUSY = re.compile(r"overloaded|temporarily unavailable|try again later")
_SLOW = re.compile(r"time.?out")
_WRONG = re.compile(r"invalid|not_?found|bad_request|unsupported")
_LOOKS_LIKE_A_KEY = re.compile(r"\b(?:(?:sk|gsk|xai)[-_]|AIza)[A-Za-z0-9_*.•-]{6,}|(?<=Bearer )\S+")


@dataclass(frozen=True, slots=True, kw_only=True)
class Place:
    """Who was asked, in words that may be shown: no key, no password, no query."""

    base_url: str
    url: str
    address: str
    """Host and port."""
    api_key_env: str | None
    model: str = ""
    credentials: str = ""
    """What to call a key that is in no variable."""
    whole_url: bool = False
    """Whether whoever asks gave the whole address of requests, as `retinue call` does: its fields have other names."""

    @property
    def called(self) -> str:
        """What whoever asks calls the address."""
        return "url" if self.whole_url else "base URL"


@dataclass(frozen=True, slots=True)
class Complaint:
    """What a server said about a failure; `kind` is its own word for it, `status` the number it gave, if any."""

    message: str
    kind: str = ""
    status: int | None = None
    retry_after: float | None = None
    param: str = ""
    """Which part of the request it is about, where the server says so."""


class Refusal(ProviderError):
    """A request that a server said no to: `said` are its own words, `kind` and `param` as in a complaint."""

    def __init__(
        self,
        message: str,
        *,
        fault: ProviderFault,
        status: int | None = None,
        retry_after: float | None = None,
        said: str | None = None,
        kind: str = "",
        param: str = "",
        busy: bool | None = None,
    ) -> None:
        super().__init__(message, fault=fault, status=status, retry_after=retry_after, busy=busy)
        self.said = message if said is None else said
        self.kind = kind
        self.param = param


def complaint_in(value: object) -> Complaint:
    """The complaint in a decoded JSON value, wherever vendors put it.

    >>> complaint_in({"error": {"message": "no", "type": "server_error", "code": 503}})
    Complaint(message='no', kind='server_error 503', status=503, retry_after=None, param='')
    >>> complaint_in({"detail": "Not Found"}).message
    'Not Found'
    """
    if isinstance(value, list) and value:
        return complaint_in(cast("list[object]", value)[0])
    if not isinstance(value, dict):
        return Complaint(value if isinstance(value, str) else "")
    said = cast("dict[str, Any]", value)
    inner = said.get("error")
    if isinstance(inner, dict | list | str) and inner:
        return complaint_in(cast("object", inner))
    words = (said.get(key) for key in ("message", "detail", "error_description", "msg", "title"))
    message = next((word if isinstance(word, str) else _json(word) for word in words if word), "")
    kinds = [said[key] for key in ("type", "code", "status") if isinstance(said.get(key), str | int)]
    numbers = (int(kind) for kind in kinds if str(kind).isdecimal() and len(str(kind)) == 3)
    status = next((n for n in numbers if 400 <= n < 600), None)
    reasons, spawn_request = _details(said.get("details"))
    param = said.get("param")
    return Complaint(
        message or _json(said),
        " ".join(map(str, (*kinds, *reasons))).lower(),
        status,
        spawn_request,
        param if isinstance(param, str) else "",
    )


def _details(value: object) -> tuple[list[str], float | None]:
    """What Google adds to an error: further words for it, and how long to wait.

    >>> _details([{"reason": "API_KEY_INVALID"}, {"@type": "google.rpc.RetryInfo", "retryDelay": "34s"}])
    (['API_KEY_INVALID'], 34.0)
    """
    details = cast("list[object]", value) if isinstance(value, list) else []
    found = [cast("dict[str, object]", detail) for detail in details if isinstance(detail, dict)]
    reasons = [reason for detail in found if isinstance(reason := detail.get("reason"), str)]
    delays = [delay for detail in found if isinstance(delay := detail.get("retryDelay"), str)]
    return reasons, next((_number(delay.removesuffix("s")) for delay in delays), None)


def fault_of(status: int | None, complaint: Complaint) -> ProviderFault:
    """Why a call failed, by the status of the answer; without one, by the server's own words.

    An error without a status came inside a stream, and only what is sure to pass is called transient.
    """
    kind, message = complaint.kind, complaint.message.lower()
    either = f"{kind} {message}"
    match status:
        case 400 | 413 | 422 | 500 | None if _TOO_LONG.search(either):
            return "too_long"
        case 400 | 422 | None if _FILTERED.search(kind):
            return "refused"
        case 400 if "api_key" in kind:
            return "auth"
        case 400 | 429 | None if _is_about_money(complaint):
            return "auth"
        case 401 | 402 | 403:
            return "auth"
        case 408 | 504:
            return "timeout"
        case 413:
            return "too_long"
        case 429:
            return "rate_limited"
        case 451:
            return "refused"
        case None:
            return _fault_by_words(kind, message)
        case _:
            return "overloaded" if status == 409 or status >= 500 else "bad_request"


def says_busy(complaint: Complaint) -> bool:
    """Whether a server says in its own words that it has too much to do.

    >>> says_busy(Complaint("Overloaded", "overloaded_error")), says_busy(Complaint("Oops", "server_error"))
    (True, False)
    """
    return (_BUSY.search(complaint.kind) or _SAYS_BUSY.search(complaint.message.lower())) is not None


def _is_about_money(complaint: Complaint) -> bool:
    # Google says "check your plan and billing" even if a minute's requests are used up.
    words = f"{complaint.kind} {complaint.message.lower()}"
    return _NO_MONEY.search(words) is not None and "resource_exhausted" not in complaint.kind


def _fault_by_words(kind: str, message: str) -> ProviderFault:
    if _RATE.search(kind):
        return "rate_limited"
    if _BROKEN.search(kind):
        return "overloaded"
    if _SLOW.search(kind):
        return "timeout"
    if _AUTH.search(kind):
        return "auth"
    if _WRONG.search(kind):
        return "bad_request"
    # No kind, or none we know: what the sentence says must be plain.
    return "rate_limited" if _RATE.search(message) else "overloaded" if _SAYS_BUSY.search(message) else "internal"


def refusal(
    status: int,
    headers: Mapping[str, str],
    body: bytes,
    *,
    reason: str,
    place: Place,
    secrets: Iterable[str],
) -> Refusal:
    """The error for an answer that is not a success."""
    complaint = _read(body)
    words = shown(complaint.message, secrets) or reason or "(no reason given)"
    message = f"{place.base_url} answered {status}: {words}"
    fault = fault_of(status, complaint)
    if 300 <= status < 400:
        target = _without_secrets(headers.get("Location", ""), secrets) or "nowhere"
        message = (
            f"{place.base_url} answered {status} and points to {target}; redirects are not followed: "
            f"set the {place.called} to where the API is"
        )
    return Refusal(
        _with_advice(
            message, _advice(status, fault, place, is_about_money=status == 402 or _is_about_money(complaint))
        ),
        fault=fault,
        status=status,
        retry_after=complaint.retry_after if (spawn_request := retry_after(headers)) is None else spawn_request,
        said=words,
        kind=complaint.kind,
        param=complaint.param,
        busy=says_busy(complaint),
    )


def in_stream(value: object) -> ProviderError:
    """The error for an error object inside an answer that began well."""
    complaint = complaint_in(value)
    fault = fault_of(complaint.status, complaint)
    return ProviderError(
        complaint.message or "an error without a reason",
        fault=fault,
        status=complaint.status,
        retry_after=complaint.retry_after,
        busy=says_busy(complaint),
    )


def advised(message: str, error: ProviderError, place: Place) -> str:
    """An error that a server told inside its answer, with what to do about it."""
    is_about_money = error.status == 402 or _NO_MONEY.search(message.lower()) is not None
    return _with_advice(message, _advice(error.status, error.fault, place, is_about_money=is_about_money))


def _advice(status: int | None, fault: ProviderFault, place: Place, *, is_about_money: bool) -> str:
    key = f"the key in {place.api_key_env}" if place.api_key_env else place.credentials
    match fault:
        case "auth" if is_about_money:
            return f"Check the plan and the balance of {key or 'the account'}"
        case "auth":
            field = "api_key_name" if place.whole_url else "api_key_env"
            return f"Check {key}" if key else f"No key was sent: name the variable that holds it ({field})"
        case "too_long":
            return f"The conversation is longer than model {place.model!r} takes"
        case _ if status == 404:
            return f"Check the model name {place.model!r} and the {place.called} (asked: {place.url})"
        case _:
            return ""


def _with_advice(message: str, advice: str) -> str:
    if not advice:
        return message
    return f"{message} {advice}" if message.endswith(("?", "!", ".", "…")) else f"{message}. {advice}"


def retry_after(headers: Mapping[str, str], *, now: float | None = None) -> float | None:
    """Seconds until the server wants to be asked again: a number or a date.

    >>> retry_after({"Retry-After": "7"}), retry_after({"retry-after-ms": "1500"}), retry_after({"Retry-After": "soon"})
    (7.0, 1.5, None)
    >>> retry_after({"Retry-After": "Thu, 01 Jan 1970 00:00:30 GMT"}, now=10.0)
    20.0
    """
    milliseconds = _number(headers.get("retry-after-ms", ""))
    if milliseconds is not None:
        return milliseconds / 1000
    spawn_request = headers.get("Retry-After", "")
    seconds = _number(spawn_request)
    if seconds is not None or not spawn_request:
        return seconds
    try:
        due = parsedate_to_datetime(spawn_request).timestamp()
    except (ValueError, OverflowError):
        return None
    return max(0.0, due - (time.time() if now is None else now))


def shown(text: str, secrets: Iterable[str], limit: int = SHOWN) -> str:
    """A server's words on one line, without keys, and not too many of them.

    >>> shown("Wrong key:\\n my-secret", ["my-secret"])
    'Wrong key: [key]'
    """
    text = " ".join(masked(text, secrets).split())
    return text if len(text) <= limit else text[:limit] + "…"


def masked(text: str, secrets: Iterable[str]) -> str:
    """The text with `[key]` for each of `secrets`, and for what looks like a key even if it is somebody else's.

    >>> masked("Incorrect API key provided: sk-abc***xyz.", [])
    'Incorrect API key provided: [key]'
    >>> masked("of an answer that was cut: my-sec", ["my-secret"])
    'of an answer that was cut: [key]'
    """
    for secret in secrets:
        text = text.replace(secret, "[key]")
        cut = next((size for size in range(len(secret) - 1, TELLING, -1) if text.endswith(secret[:size])), 0)
        text = text[: len(text) - cut] + "[key]" if cut else text
    return _LOOKS_LIKE_A_KEY.sub("[key]", text)


def _without_secrets(address: str, secrets: Iterable[str]) -> str:
    """An address without its query and whoever's name and password."""
    address = address.partition("?")[0].partition("#")[0]
    return shown(re.sub(r"(?<=//)[^/]*@", "", address), secrets)


def _read(body: bytes) -> Complaint:
    try:
        value: object = msgspec.json.decode(body)
    except NOT_JSON:
        return Complaint(body.decode("utf-8", "replace"))
    complaint = complaint_in(value)
    return complaint if complaint.message else Complaint(body.decode("utf-8", "replace"))


def _json(value: object) -> str:
    return msgspec.json.encode(value).decode()


def _number(text: str) -> float | None:
    try:
        number = float(text)
    except ValueError:
        return None
    return max(0.0, number) if isfinite(number) else None
