"""Keys of model options, which `[providers.<name>]` and `[agents.<name>]` have in common: their types and texts."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any, Literal, TypeAlias

from msgspec import Meta, Struct

from retinue.core.model_options import (
    MAX_BATCH_HOURS,
    MAX_REPLY_TOKENS,
    MAX_STOP_CHARS,
    MAX_STOPS,
    NO_OPTIONS,
    ModelOptions,
)
from retinue.core.model_options import Effort as EffortName

ReplyTokens: TypeAlias = Annotated[int, Meta(ge=1, le=MAX_REPLY_TOKENS)]
OneWord: TypeAlias = Annotated[
    str,
    Meta(pattern=r"\A[A-Za-z0-9_.:-]{1,100}\Z", extra={"expected": "letters, digits and the characters _ . : -"}),
]
_StopText: TypeAlias = Annotated[str, Meta(min_length=1, max_length=MAX_STOP_CHARS)]

EffortValue: TypeAlias = Annotated[
    EffortName | None, Meta(description="How much the model thinks; none switches thinking off.", examples=["medium"])
]
MaxOutputTokens: TypeAlias = Annotated[
    ReplyTokens | None, Meta(description="Tokens of one reply; by default the most of the model.", examples=[16_000])
]
Temperature: TypeAlias = Annotated[
    Annotated[float, Meta(ge=0, le=2)] | None, Meta(description="From 0 to 2.", examples=[0.2])
]
TopP: TypeAlias = Annotated[Annotated[float, Meta(ge=0, le=1)] | None, Meta(description="From 0 to 1.", examples=[0.9])]
StopTexts: TypeAlias = Annotated[
    Annotated[tuple[_StopText, ...], Meta(max_length=MAX_STOPS)],
    Meta(description="Texts that end a reply.", examples=[["END"]]),
]
Seed: TypeAlias = Annotated[
    Annotated[int, Meta(ge=-(2**63), le=2**63 - 1)] | None,
    Meta(description="A number for repeatable sampling.", examples=[7]),
]
ServiceTier: TypeAlias = Annotated[OneWord | None, Meta(description="The vendor's tier of service.", examples=["flex"])]
ToolChoice: TypeAlias = Annotated[
    OneWord | None,
    Meta(
        description="auto, none, required or a tool's name; the last two hold for the first reply.", examples=["auto"]
    ),
]
ParallelToolCalls: TypeAlias = Annotated[
    bool | None, Meta(description="Whether one reply may have several calls.", examples=[True])
]
CacheTtl: TypeAlias = Annotated[
    Literal["5m", "1h"] | None, Meta(description="How long Anthropic keeps prompts in its cache.", examples=["5m"])
]
Stream: TypeAlias = Annotated[
    bool | None, Meta(description="false asks for whole answers in place of streams.", examples=[True])
]
Betas: TypeAlias = Annotated[tuple[OneWord, ...], Meta(description="Beta features of Anthropic's API.", examples=[[]])]
BatchHours: TypeAlias = Annotated[
    Annotated[float, Meta(ge=0, le=MAX_BATCH_HOURS)] | None,
    Meta(description="Hours that each reply may take in the vendor's batches, at half the price.", examples=[24]),
]
ExtraBody: TypeAlias = Annotated[
    Mapping[str, Any],
    Meta(description="Fields that are added to the body of every request.", examples=[{"user": "search"}]),
]
ExtraHeaders: TypeAlias = Annotated[
    Mapping[str, str],
    Meta(description="Headers that are added to its requests, without credentials.", examples=[{"X-Team": "search"}]),
]


def model_options_of(settings: Struct) -> ModelOptions:
    """The options among the keys of a table; raises `BadInput` for one that cannot be sent."""
    names = [name for name in ModelOptions.__struct_fields__ if name in settings.__struct_fields__]
    given = {name: value for name in names if (value := getattr(settings, name)) not in (None, (), {})}
    return ModelOptions(**given) if given else NO_OPTIONS
