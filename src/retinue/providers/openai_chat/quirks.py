"""How servers of chat completions differ in requests: where the effort goes, and what they want besides."""

from __future__ import annotations

from collections.abc import Collection
from typing import Literal, TypeAlias

from msgspec import Struct

from retinue.core.model_options import Effort
from retinue.providers.effort import nearest_step, openai_effort

EffortField: TypeAlias = Literal["reasoning_models", "reasoning_effort", "reasoning", "thinking", "template"]
"""Where the effort goes. `reasoning_models`: `reasoning_effort`, for OpenAI's reasoning models alone.
`reasoning_effort`: that field for every model. `reasoning`: OpenRouter's object. `thinking`: an object that switches
thinking on or off, and the effort next to it. `template`: a switch for the chat template, and the effort next to it."""

EFFORT = "reasoning_effort"


class ChatQuirks(Struct, frozen=True):
    """What a server of chat completions needs besides OpenAI's format."""

    effort: EffortField = "reasoning_models"
    steps: tuple[Effort, ...] | None = None
    """The steps of effort that the server has, which may be none; None for those of OpenAI's models."""
    max_output: bool = False
    """Whether the longest reply of the model is sent where the request sets no limit: the server's default is short."""
    think_tags: bool = False
    """Whether text between `<think>` and `</think>` at the beginning of an answer is thinking."""
    seed: str = "seed"
    """The field of the seed."""
    server_tools: dict[str, str] = {}
    """The vendor's names of the tools that it runs: `web` is a plugin of OpenRouter, others are types of tools."""


OPENAI = ChatQuirks()
LOCAL_SERVER = ChatQuirks(effort="template", think_tags=True)


def effort_options(
    effort: Effort, model: str, quirks: ChatQuirks, unsupported: Collection[str] = ()
) -> dict[str, object]:
    """The options that ask a server for an effort.

    >>> effort_options("max", "o3", OPENAI)
    {'reasoning_effort': 'high'}
    >>> effort_options("low", "glm-5", ChatQuirks(effort="thinking", steps=()))
    {'thinking': {'type': 'enabled'}}
    >>> effort_options("low", "qwen3", LOCAL_SERVER)
    {'reasoning_effort': 'low', 'chat_template_kwargs': {'enable_thinking': True}}
    """
    step = _step(effort, model, quirks, unsupported)
    is_on = effort != "none"
    match quirks.effort:
        case "reasoning_models" | "reasoning_effort":
            return {} if step is None else {EFFORT: step}
        case "reasoning":
            return {"reasoning": {"effort": step} if is_on and step is not None else {"enabled": is_on}}
        case "thinking":
            more: dict[str, object] = {EFFORT: step} if is_on and step is not None else {}
            return {"thinking": {"type": "enabled" if is_on else "disabled"}} | more
        case "template":
            found: dict[str, object] = {} if step is None else {EFFORT: step}
            return found | {"chat_template_kwargs": {"enable_thinking": is_on}}


def _step(effort: Effort, model: str, quirks: ChatQuirks, unsupported: Collection[str]) -> Effort | None:
    if quirks.steps is not None:
        return nearest_step(effort, quirks.steps, EFFORT, unsupported)
    return openai_effort(model, effort, EFFORT, unsupported)
