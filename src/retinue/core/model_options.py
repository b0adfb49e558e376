"""Options of model requests: how a model samples, how hard it thinks, how long its reply may be, and what else is sent.

The same options can be set on a provider, on an agent and on a run; `over` merges them. Each wire maps what its vendor
has, and `providers/wire.py:Wire.supports` lists which options that is.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any, Literal, TypeAlias, cast

import msgspec
from msgspec import Struct
from msgspec.structs import force_setattr, replace

from retinue.core.errors import BadInput

Effort: TypeAlias = Literal["none", "minimal", "low", "medium", "high", "xhigh", "max"]
"""How much a model thinks before it answers; `none` switches thinking off where the model allows it."""

EFFORTS: tuple[Effort, ...] = ("none", "minimal", "low", "medium", "high", "xhigh", "max")

THINKING_TOKENS: dict[Effort, int] = {
    "none": 0,
    "minimal": 1024,
    "low": 4096,
    "medium": 12_000,
    "high": 24_000,
    "xhigh": 48_000,
    "max": 96_000,
}
"""Tokens of thinking that an effort may take."""

MAX_TEMPERATURE = 2
MAX_REPLY_TOKENS = 1_000_000_000
MAX_BATCH_HOURS = 720
MAX_STOPS = 16
MAX_STOP_CHARS = 1000
MAX_EXTRA_BYTES = 64 * 1024
MAX_EXTRA_HEADERS = 32

_CONVERSATION = frozenset(
    [
        "model",
        "messages",
        "input",
        "contents",
        "system",
        "systemInstruction",
        "system_instruction",
        "instructions",
        "tools",
        "stream",
    ]
)
_OWN_OPTIONS = {"max_tokens": "max_output_tokens", "max_completion_tokens": "max_output_tokens"}
_SECRET_HEADER = re.compile(r"auth|key|token|secret|cookie|password", re.IGNORECASE)
_HEADER_NAME = re.compile(r"[A-Za-z0-9!#$%&'*+.^_`|~-]{1,100}")
_HEADER_VALUE = re.compile(r"[\t\x20-\x7e]{0,4096}")
_FIXED_HEADERS = frozenset(
    ["host", "content-length", "content-type", "content-encoding", "transfer-encoding", "connection"]
)
_WORD = re.compile(r"[A-Za-z0-9_.:-]{1,100}")


class RequestOptions(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """The part of `ModelOptions` that only some vendors have, as a run stores it and a wire reads it.

    `extra_body` is JSON text, and `extra_headers` are pairs: the options of many runs are compared often.
    """

    stop: tuple[str, ...] = ()
    seed: int | None = None
    service_tier: str = ""
    tool_choice: str = ""
    parallel_tool_calls: bool | None = None
    cache_ttl: Literal["5m", "1h"] | None = None
    stream: bool | None = None
    betas: tuple[str, ...] = ()
    batch_hours: float | None = None
    extra_body: str = ""
    extra_headers: tuple[tuple[str, str], ...] = ()

    @property
    def body_fields(self) -> dict[str, Any]:
        """The fields of `extra_body`."""
        return msgspec.json.decode(self.extra_body) if self.extra_body else {}

    def over(self, base: RequestOptions) -> RequestOptions:
        """These options where they are set, else those of `base`."""
        return replace(base, **{name: getattr(self, name) for name in set_options(self)})

    @property
    def portable(self) -> RequestOptions:
        """The options that mean the same at another vendor, for a fallback model."""
        if not (self.service_tier or self.betas or self.batch_hours or self.extra_body or self.extra_headers):
            return self
        return replace(self, service_tier="", betas=(), batch_hours=None, extra_body="", extra_headers=())


NO_REQUEST_OPTIONS = RequestOptions()


def with_hours_of(caller: RequestOptions, options: RequestOptions) -> RequestOptions:
    """The options of a child with the `batch_hours` of its caller."""
    return options if caller.batch_hours is None else replace(options, batch_hours=caller.batch_hours)


class ModelOptions(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """How a model answers: effort, sampling, the longest reply, and further options of its vendor's API.

    None, or an empty value, leaves an option to the agent, then to the settings of the provider, then to the vendor.
    Options of a run hold for that run; its children have those of their agents, and the `batch_hours` of the run unless
    their agent sets its own (0 for none) or has another provider.

    - `effort`: how much the model thinks: `none`, `minimal`, `low`, `medium`, `high`, `xhigh` or `max`.
    - `temperature`, from 0 to 2, and `top_p`, from 0 to 1. `max_output_tokens` limits each reply.
    - `stop`: texts that end a reply. `seed`: a number for repeatable sampling. `service_tier`: the vendor's own word.
    - `tool_choice`: `auto`, `none`, `required` or the name of a tool. The last two hold for the first reply of a run,
      because a model that must call a tool in every reply can never answer.
    - `parallel_tool_calls`: whether a reply may have several calls.
    - `cache_ttl`: `1h` keeps prompts in Anthropic's cache for an hour. `betas`: features of Anthropic's API.
    - `stream`: False asks for whole answers.
    - `batch_hours`: requests go to the vendor's batch API, at half the price, and each may take so many hours.
    - `extra_body`: fields that are added to the body of requests. `extra_headers` are added to the headers; they carry
      no credentials.

    Raises `BadInput` for a value that cannot be used.

    >>> ModelOptions(temperature=0.2, max_output_tokens=4096, effort="low").top_p is None
    True
    >>> ModelOptions(top_p=1.5)
    Traceback (most recent call last):
    retinue.core.errors.BadInput: top_p: found 1.5; expected a number from 0 to 1
    >>> ModelOptions(extra_headers={"X-Api-Key": "abc"})
    Traceback (most recent call last):
    retinue.core.errors.BadInput: extra_headers: X-Api-Key may carry a credential, which is sent to one address alone; \
set it in the settings of the provider ([providers.NAME] headers)
    """

    effort: Effort | None = None
    temperature: float | None = None
    top_p: float | None = None
    max_output_tokens: int | None = None
    stop: Sequence[str] | str = ()
    seed: int | None = None
    service_tier: str = ""
    tool_choice: str = ""
    parallel_tool_calls: bool | None = None
    cache_ttl: Literal["5m", "1h"] | None = None
    stream: bool | None = None
    betas: Sequence[str] = ()
    batch_hours: float | None = None
    extra_body: Mapping[str, Any] = {}
    extra_headers: Mapping[str, str] = {}

    def __post_init__(self) -> None:
        _check_range("temperature", self.temperature, 0, MAX_TEMPERATURE)
        _check_range("top_p", self.top_p, 0, 1)
        _check_range("max_output_tokens", self.max_output_tokens, 1, MAX_REPLY_TOKENS)
        if self.effort is not None and self.effort not in EFFORTS:
            raise BadInput(f"effort: found {self.effort!r:.40}; expected one of: {', '.join(EFFORTS)}")
        _check_range("batch_hours", self.batch_hours, 0, MAX_BATCH_HOURS)
        _check_range("seed", self.seed, -(2**63), 2**63 - 1)
        force_setattr(self, "stop", (self.stop,) if isinstance(self.stop, str) else tuple(self.stop))
        force_setattr(self, "betas", tuple(self.betas))
        if len(self.stop) > MAX_STOPS or not all(0 < len(text) <= MAX_STOP_CHARS for text in self.stop):
            raise BadInput(f"stop: expected at most {MAX_STOPS} texts of 1 to {MAX_STOP_CHARS} characters")
        for name, words in {
            "service_tier": (self.service_tier,),
            "tool_choice": (self.tool_choice,),
            "betas": self.betas,
        }.items():
            if not all(not word or _WORD.fullmatch(word) for word in words):
                raise BadInput(f"{name}: expected letters, digits and the characters _ . : -")
        if self.cache_ttl == "5m":  # which is the vendor's own default
            force_setattr(self, "cache_ttl", None)
        _check_body(self.extra_body)
        _check_headers(self.extra_headers)

    @property
    def request_options(self) -> RequestOptions:
        """The part that a run stores and a wire reads; one object for all runs without such options."""
        options = RequestOptions(
            stop=tuple(self.stop),
            seed=self.seed,
            service_tier=self.service_tier,
            tool_choice=self.tool_choice,
            parallel_tool_calls=self.parallel_tool_calls,
            cache_ttl=self.cache_ttl,
            stream=self.stream,
            betas=tuple(self.betas),
            batch_hours=self.batch_hours or None,
            extra_body=msgspec.json.encode(self.extra_body).decode() if self.extra_body else "",
            extra_headers=tuple(self.extra_headers.items()),
        )
        return NO_REQUEST_OPTIONS if options == NO_REQUEST_OPTIONS else options

    def over(self, base: ModelOptions) -> ModelOptions:
        """These options where they are set, else those of `base`.

        >>> ModelOptions(effort="low").over(ModelOptions(effort="high", seed=7)) == ModelOptions(effort="low", seed=7)
        True
        """
        return replace(base, **{name: getattr(self, name) for name in set_options(self)})


def set_options(options: ModelOptions | RequestOptions) -> list[str]:
    """The names of the options that are set.

    >>> set_options(ModelOptions(effort="low", stop="END", parallel_tool_calls=False))
    ['effort', 'stop', 'parallel_tool_calls']
    """
    return [name for name in options.__struct_fields__ if getattr(options, name) not in (None, "", (), {})]


def _check_range(name: str, number: float | None, least: int, most: int) -> None:
    if number is not None and not least <= number <= most:
        raise BadInput(f"{name}: found {number:g}; expected a number from {least} to {most}")


def _check_body(fields: object) -> None:
    """Raise `BadInput` for fields that are no JSON, are many, or would replace the conversation."""
    if not isinstance(fields, Mapping):
        raise BadInput("extra_body: expected an object with fields for the body of requests")
    named = cast("Mapping[object, object]", fields)
    if not named:
        return
    try:
        size = len(msgspec.json.encode(named)) if all(isinstance(name, str) for name in named) else None
    except (TypeError, ValueError, OverflowError, RecursionError):
        size = None
    if size is None:
        raise BadInput("extra_body: expected an object with fields for the body of requests")
    if size > MAX_EXTRA_BYTES:
        raise BadInput(f"extra_body: expected at most {MAX_EXTRA_BYTES} bytes of JSON")
    for name in named:
        if name in _CONVERSATION:
            raise BadInput(f"extra_body: {name} cannot be replaced; it is part of the conversation")
        if name in _OWN_OPTIONS:
            raise BadInput(f"extra_body: set {_OWN_OPTIONS[str(name)]} in place of {name}")


def _check_headers(headers: Mapping[str, str]) -> None:
    """Raise `BadInput` for headers that cannot be sent, and for those that may carry a key to another host."""
    if len(headers) > MAX_EXTRA_HEADERS:
        raise BadInput(f"extra_headers: expected at most {MAX_EXTRA_HEADERS} headers")
    for name, value in headers.items():
        if not _HEADER_NAME.fullmatch(name) or not _HEADER_VALUE.fullmatch(value) or name.lower() in _FIXED_HEADERS:
            raise BadInput(f"extra_headers: {name[:100]!r} cannot be sent with a request")
        if _SECRET_HEADER.search(name):
            raise BadInput(
                f"extra_headers: {name} may carry a credential, which is sent to one address alone; set it in the "
                "settings of the provider ([providers.NAME] headers)"
            )


NO_OPTIONS = ModelOptions()
