"""Errors of model servers: fault, time to wait, and advice, from an HTTP status and the error object in the body.

Shared by all wires, because vendors' errors look alike: a status, and a JSON object with a message somewhere in it.
Messages never contain a key: whatever looks like one is replaced.
"""

from __future__ import annotations

import re
import time
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from email.utils import parsedate_to_datetime
from math import isfinite
from typing import Any, cast

import msgspec

from retinue.core.errors import ProviderError, ProviderFault
from retinue.core.text import NOT_JSON
from retinue.providers.key_mask import HARMLESS_PREFIX, MASK, mask_forms

MESSAGE_CHARS = 500
"""How many characters of a server's message an error repeats."""

TITLE_BYTES = 16 * 1024
"""How much of a page is searched for its title."""

SLIP_CHARS = 2000
"""How many characters of what a model wrote wrongly are repeated to it."""

READ_PER_SHOWN = 8
"""How many characters of a text are read for each one that is shown; the rest may be whitespace or keys."""

_TOO_LONG = re.compile(
    r"context[ _]?(length|window|size)|(maximum|exceed) context|max_model_len|too many (input )?tokens"
    r"|(prompt|input|request|messages?) (is |are |was )?too (long|large)|reduce the length|string_above_max_length"
    r"|exceeds the maximum number of tokens|range of input length should be"
)
_FILTERED = re.compile(r"content_?(filter|policy)|moderation|safety")
_NO_MONEY = re.compile(
    r"insufficient_(quota|balance|credits?)|billing|exceeded your current quota|insufficient balance|credit balance"
)
_SLIP = re.compile(r"\b(?:tool_use_failed|json_validate_failed)\b")
"""Groq's words for an answer of the model that it could not read, with status 400 or inside a stream."""
_RATE = re.compile(r"rate.?limit|too.many.requests|resource_exhausted|throttl")
_TRY_AGAIN_IN = re.compile(
    r"try again in (?:(?P<ms>\d{1,9}(?:\.\d+)?) ?ms\b|(?=\d)(?:(?P<minutes>\d{1,5}) ?m)?"
    r"(?:(?P<seconds>\d{1,6}(?:\.\d+)?) ?s)?\b)",
    re.IGNORECASE,
)
_BUSY = re.compile(r"overload|unavailable|capacity")
_BUSY_MESSAGE = re.compile(r"overloaded|temporarily unavailable|try again later")
_BY_STATUS: Mapping[int, ProviderFault] = {
    **dict.fromkeys((401, 402, 403), "auth"),
    **{
        408: "timeout",
        409: "overloaded",
        413: "too_long",
        424: "overloaded",
        429: "rate_limited",
        451: "refused",
        504: "timeout",
    },
}
_BY_KIND: tuple[tuple[re.Pattern[str], ProviderFault], ...] = (
    (_RATE, "rate_limited"),
    (re.compile(r"overload|unavailable|server_error|internal|api_error|capacity"), "overloaded"),
    (re.compile(r"time.?out"), "timeout"),
    (re.compile(r"authenticat|unauthor|permission|api_?key|forbidden|credential"), "auth"),
    (re.compile(r"invalid|not_?found|bad_request|unsupported"), "bad_request"),
)
"""Faults by the server's word for an error; the first match counts."""
_TITLE = re.compile(r"<title[^>]{0,100}>([^<]{1,300})</title>", re.IGNORECASE)
_LOOKS_LIKE_A_KEY = re.compile(r"\b(?:(?:sk|gsk|xai)[-_]|AIza)[A-Za-z0-9_*.•-]{6,}|(?<=Bearer )\S+")


@dataclass(frozen=True, slots=True, kw_only=True)
class EndpointInfo:
    """Facts about an endpoint that error messages may show: no key, no password, no query."""

    base_url: str
    url: str
    address: str
    """Host and port."""
    api_key_env: str | None
    model: str = ""
    credentials: str = ""
    """What to call a key that is in no variable."""
    full_url: bool = False
    """Whether the caller gave the complete URL of requests, as `retinue call` does: its fields have other names."""

    @property
    def url_field(self) -> str:
        """The caller's name for the address."""
        return "url" if self.full_url else "base URL"


@dataclass(frozen=True, slots=True)
class ErrorBody:
    """The error object of a server: `kind` is its own word for the error, `status` the number it gave, if any."""

    message: str
    kind: str = ""
    status: int | None = None
    retry_after: float | None = None
    param: str = ""
    """The part of the request it is about, where the server names one."""
    generation: str = ""
    """What the model wrote, where the server rejects that and repeats it."""


class ErrorResponse(ProviderError):
    """An HTTP error response: `server_message` is the server's own text, `kind` and `param` as in `ErrorBody`."""

    def __init__(
        self,
        message: str,
        *,
        fault: ProviderFault,
        status: int | None = None,
        retry_after: float | None = None,
        server_message: str | None = None,
        kind: str = "",
        param: str = "",
        busy: bool | None = None,
        slip: str = "",
    ) -> None:
        super().__init__(message, fault=fault, status=status, retry_after=retry_after, busy=busy, slip=slip)
        self.server_message = message if server_message is None else server_message
        self.kind = kind
        self.param = param


def parse_error_body(value: object) -> ErrorBody:
    """The error in a decoded JSON value, wherever vendors put it.

    >>> parse_error_body({"error": {"message": "no", "type": "server_error", "code": 503}})
    ErrorBody(message='no', kind='server_error 503', status=503, retry_after=None, param='', generation='')
    >>> parse_error_body({"detail": "Not Found"}).message
    'Not Found'
    """
    if isinstance(value, list) and value:
        return parse_error_body(cast("list[object]", value)[0])
    if not isinstance(value, dict):
        return ErrorBody(value if isinstance(value, str) else "")
    body = cast("dict[str, Any]", value)
    inner = body.get("error")
    if isinstance(inner, dict | list | str) and inner:
        return parse_error_body(cast("object", inner))
    if (upstream := _upstream_error(body.get("metadata"))) is not None:
        outer = parse_error_body({key: value for key, value in body.items() if key != "metadata"})
        return ErrorBody(
            f"{outer.message}: {upstream.message}",
            f"{outer.kind} {upstream.kind}".strip(),
            outer.status or upstream.status,
            upstream.retry_after,
            outer.param or upstream.param,
            upstream.generation,
        )
    texts = (body.get(key) for key in ("message", "detail", "error_description", "msg", "title"))
    message = next((text if isinstance(text, str) else _json(text) for text in texts if text), "")
    kinds = [body[key] for key in ("type", "code", "status") if isinstance(body.get(key), str | int)]
    numbers = (int(kind) for kind in kinds if str(kind).isdecimal() and len(str(kind)) == 3)
    status = next((number for number in numbers if 400 <= number < 600), None)
    reasons, retry_seconds = _google_details(body.get("details"))
    if retry_seconds is None:
        retry_seconds = _announced_wait(message)
    param, generation = body.get("param"), body.get("failed_generation")
    return ErrorBody(
        message or _json(body),
        " ".join(map(str, (*kinds, *reasons))).lower(),
        status,
        retry_seconds,
        param if isinstance(param, str) else "",
        generation if isinstance(generation, str) else "",
    )


def _upstream_error(metadata: object) -> ErrorBody | None:
    """The error of the vendor behind OpenRouter, which repeats it as text: `metadata.raw` of its own error.

    >>> _upstream_error({"raw": '{"error":{"message":"prompt is too long"}}', "provider_name": "A"}).message
    'prompt is too long'
    """
    raw = cast("dict[str, object]", metadata).get("raw") if isinstance(metadata, dict) else None
    if not isinstance(raw, str) or not raw.strip():
        return None
    return _parse(raw.encode())


def _google_details(value: object) -> tuple[list[str], float | None]:
    """The `details` that Google adds to an error: reasons, and how long to wait.

    >>> _google_details([{"reason": "API_KEY_INVALID"}, {"@type": "google.rpc.RetryInfo", "retryDelay": "34s"}])
    (['API_KEY_INVALID'], 34.0)
    """
    items = cast("list[object]", value) if isinstance(value, list) else []
    details = [cast("dict[str, object]", item) for item in items if isinstance(item, dict)]
    reasons = [reason for detail in details if isinstance(reason := detail.get("reason"), str)]
    delays = [delay for detail in details if isinstance(delay := detail.get("retryDelay"), str)]
    return reasons, next((_number(delay.removesuffix("s")) for delay in delays), None)


def _announced_wait(message: str) -> float | None:
    """Seconds to wait, where a message says so in words.

    >>> [_announced_wait(f"Please try again in {text}.") for text in ("11.034s", "350ms", "1m30s", "a minute")]
    [11.034, 0.35, 90.0, None]
    """
    found = _TRY_AGAIN_IN.search(message)
    if found is None:
        return None
    if found["ms"]:
        return float(found["ms"]) / 1000
    return 60.0 * float(found["minutes"] or 0) + float(found["seconds"] or 0)


def fault_of(status: int | None, body: ErrorBody) -> ProviderFault:
    """Why a call failed, by the HTTP status; without one, by the error's kind and message.

    An error without a status came inside a stream, and only what is sure to pass is called transient.
    """
    if slip_of(body):
        return "cut"
    kind, message = body.kind, body.message.lower()
    either = f"{kind} {message}"
    match status:
        case 400 | 413 | 422 | 500 | 502 | None if _TOO_LONG.search(either):
            return "too_long"
        case 400 | 422 | None if _FILTERED.search(kind):
            return "refused"
        case 400 if "api_key" in kind:
            return "auth"
        case 400 | 429 | None if _is_billing_error(body):
            return "auth"
        case None:
            return _fault_by_kind(kind, message)
        case _:
            return _BY_STATUS.get(status, "overloaded" if status >= 500 else "bad_request")


def slip_of(body: ErrorBody) -> str:
    """What was wrong with the model's answer, if the server rejects that and not the request; in words for the model.

    >>> slip_of(ErrorBody("Failed to call a function.", "tool_use_failed", generation="<function=ls>"))
    'Failed to call a function. It wrote: <function=ls>'
    >>> slip_of(ErrorBody("Bad tools", "invalid_request_error"))
    ''
    """
    if _SLIP.search(body.kind) is None:
        return ""
    return f"{body.message} It wrote: {body.generation}" if body.generation else body.message


def is_busy(body: ErrorBody) -> bool:
    """Whether a server reports that it has too much to do.

    >>> is_busy(ErrorBody("Overloaded", "overloaded_error")), is_busy(ErrorBody("Oops", "server_error"))
    (True, False)
    """
    return (_BUSY.search(body.kind) or _BUSY_MESSAGE.search(body.message.lower())) is not None


def _is_billing_error(body: ErrorBody) -> bool:
    # Google writes "check your plan and billing" even if only a minute's requests are used up.
    text = f"{body.kind} {body.message.lower()}"
    return _NO_MONEY.search(text) is not None and "resource_exhausted" not in body.kind


def _fault_by_kind(kind: str, message: str) -> ProviderFault:
    for pattern, fault in _BY_KIND:
        if pattern.search(kind):
            return fault
    # No kind, or an unknown one: only an unmistakable message decides.
    return "rate_limited" if _RATE.search(message) else "overloaded" if _BUSY_MESSAGE.search(message) else "internal"


def error_response(
    status: int,
    headers: Mapping[str, str],
    content: bytes,
    *,
    reason: str,
    endpoint: EndpointInfo,
    secrets: Iterable[str],
) -> ErrorResponse:
    """The error for a response whose status is not a success."""
    body = _parse(content)
    if not body.kind and (kind := headers.get("x-amzn-ErrorType", "")):
        body = replace(body, kind=kind.partition(":")[0].lower())
    if is_html(content):
        body = replace(body, message=html_title(content) or body.message)
    server_message = display_text(body.message, secrets) or display_text(reason, secrets) or "(no reason given)"
    message = f"{endpoint.base_url} answered {status}: {server_message}"
    fault = fault_of(status, body)
    if 300 <= status < 400:
        target = _without_credentials(headers.get("Location", ""), secrets) or "nowhere"
        message = (
            f"{endpoint.base_url} answered {status} and points to {target}; redirects are not followed: "
            f"set the {endpoint.url_field} to where the API is"
        )
    if status == 403 and is_html(content) and b"cloudflare" in content.lower():
        message = (
            f"{endpoint.base_url} is behind Cloudflare, which blocked the request before it reached the server "
            f"({status}: {server_message}). Try from another network, or check the {endpoint.url_field}"
        )
        fault = "bad_request"
    retry_seconds = retry_after(headers)
    advice = _advice(status, fault, endpoint, is_billing=status == 402 or _is_billing_error(body))
    return ErrorResponse(
        _append_advice(message, advice),
        fault=fault,
        status=status,
        retry_after=body.retry_after if retry_seconds is None else retry_seconds,
        server_message=server_message,
        kind=body.kind,
        param=body.param,
        busy=is_busy(body),
        slip=display_text(slip_of(body), secrets, SLIP_CHARS),
    )


def stream_error(value: object) -> ProviderError:
    """The error for an error object inside a response whose status was a success."""
    body = parse_error_body(value)
    return ProviderError(
        body.message or "an error without a reason",
        fault=fault_of(body.status, body),
        status=body.status,
        retry_after=body.retry_after,
        busy=is_busy(body),
        slip=slip_of(body),
    )


def with_advice(message: str, error: ProviderError, endpoint: EndpointInfo) -> str:
    """The message of an error in a stream, followed by what to do about it."""
    is_billing = error.status == 402 or _NO_MONEY.search(message.lower()) is not None
    return _append_advice(message, _advice(error.status, error.fault, endpoint, is_billing=is_billing))


def _advice(status: int | None, fault: ProviderFault, endpoint: EndpointInfo, *, is_billing: bool) -> str:
    key = f"the key in {endpoint.api_key_env}" if endpoint.api_key_env else endpoint.credentials
    match fault:
        case "auth" if is_billing:
            return f"Check the plan and the balance of {key or 'the account'}"
        case "auth":
            field = "api_key_name" if endpoint.full_url else "api_key_env"
            return f"Check {key}" if key else f"No key was sent: name the variable that holds it ({field})"
        case "too_long":
            return f"The conversation is longer than model {endpoint.model!r} takes"
        case _ if status == 404:
            return f"Check the model name {endpoint.model!r} and the {endpoint.url_field} (asked: {endpoint.url})"
        case _:
            return ""


def _append_advice(message: str, advice: str) -> str:
    if not advice:
        return message
    return f"{message} {advice}" if message.endswith(("?", "!", ".", "…")) else f"{message}. {advice}"


def retry_after(headers: Mapping[str, str], *, now: float | None = None) -> float | None:
    """Seconds to wait before the next request, from `retry-after-ms` or `Retry-After` (a number or a date).

    >>> retry_after({"Retry-After": "7"}), retry_after({"retry-after-ms": "1500"}), retry_after({"Retry-After": "soon"})
    (7.0, 1.5, None)
    >>> retry_after({"Retry-After": "Thu, 01 Jan 1970 00:00:30 GMT"}, now=10.0)
    20.0
    """
    milliseconds = _number(headers.get("retry-after-ms", ""))
    if milliseconds is not None:
        return milliseconds / 1000
    value = headers.get("Retry-After", "")
    seconds = _number(value)
    if seconds is not None or not value:
        return seconds
    try:
        due = parsedate_to_datetime(value).timestamp()
    except (ValueError, OverflowError):
        return None
    return max(0.0, due - (time.time() if now is None else now))


def display_text(text: str, secrets: Iterable[str], limit: int = MESSAGE_CHARS) -> str:
    """A server's text as one line of at most `limit` characters, without keys.

    >>> display_text("Wrong key:\\n my-secret", ["my-secret"])
    'Wrong key: [key]'
    """
    # More than this is not read: the time that a search for every form of a key takes grows with the text.
    text = " ".join(mask_secrets(text[: READ_PER_SHOWN * limit], secrets).split())
    return text if len(text) <= limit else text[:limit] + "…"


def mask_secrets(text: str, secrets: Iterable[str]) -> str:
    """The text with `[key]` for each of `secrets`, for the beginning of one at the end, and for what looks like a key.

    A secret is found in other written forms, too: see `mask_forms`.

    >>> mask_secrets("Incorrect API key provided: sk-abc***xyz.", [])
    'Incorrect API key provided: [key]'
    >>> mask_secrets("of an answer that was cut: my-sec", ["my-secret"])
    'of an answer that was cut: [key]'
    """
    for secret in secrets:
        text = mask_forms(text, secret)
        cut = next((size for size in range(len(secret) - 1, HARMLESS_PREFIX, -1) if text.endswith(secret[:size])), 0)
        text = text[: len(text) - cut] + MASK if cut else text
    return _LOOKS_LIKE_A_KEY.sub(MASK, text)


def _without_credentials(address: str, secrets: Iterable[str]) -> str:
    address = address.partition("?")[0].partition("#")[0]
    return display_text(re.sub(r"(?<=//)[^/]*@", "", address), secrets)


def is_html(content: bytes) -> bool:
    """Whether a response is a page for people, from a proxy or a wrong address.

    >>> is_html(b" <!DOCTYPE html><title>Not found</title>"), is_html(b'{"error": "<html>"}')
    (True, False)
    """
    beginning = content[:100].lstrip().lower()
    return beginning.startswith((b"<!doctype html", b"<html"))


def html_title(content: bytes) -> str:
    """The title of a page, empty if it has none.

    >>> html_title(b"<html><head><title>502 Bad Gateway</title></head></html>")
    '502 Bad Gateway'
    """
    found = _TITLE.search(content[:TITLE_BYTES].decode("utf-8", "replace"))
    return " ".join(found[1].split()) if found else ""


def _parse(content: bytes) -> ErrorBody:
    try:
        body = parse_error_body(msgspec.json.decode(content))
    except NOT_JSON:
        body = ErrorBody("")
    return body if body.message else ErrorBody(content.decode("utf-8", "replace"))


def _json(value: object) -> str:
    return msgspec.json.encode(value).decode()


def _number(text: str) -> float | None:
    try:
        number = float(text)
    except ValueError:
        return None
    return max(0.0, number) if isfinite(number) else None
