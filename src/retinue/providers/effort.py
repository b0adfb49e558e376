"""Effort on each wire: the value that a model takes for an effort, and the next one if it rejects that.

Vendors have fewer steps than `core/model_options.py:EFFORTS`, and each model has some of them. A step that a model is
known to lack is replaced by the nearest one. A step that a server rejects is remembered as `OPTION=STEP` among the
unsupported options of the model, with all that the server does not name as supported, and the nearest of the others is
sent; if that is rejected too, the option is left out.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Sequence

from retinue.core.model_options import EFFORTS, Effort

_STEPS: tuple[tuple[re.Pattern[str], tuple[Effort, ...]], ...] = (
    (re.compile(r"(?:.*/)?gpt-5-pro"), ("high",)),
    (re.compile(r"(?:.*/)?o\d"), ("low", "medium", "high")),
    (re.compile(r"(?:.*/)?gpt-5-codex"), ("low", "medium", "high")),
    (re.compile(r"(?:.*/)?gpt-5(?![.\d])"), ("minimal", "low", "medium", "high")),
    (re.compile(r"(?:.*/)?gpt-5\.1-codex-max"), ("none", "low", "medium", "high", "xhigh")),
    (re.compile(r"(?:.*/)?gpt-5\.1(?!\d)"), ("none", "low", "medium", "high")),
    (re.compile(r"(?:.*/)?gpt-\d"), ("none", "low", "medium", "high", "xhigh")),
    (re.compile(r"(?:.*/)?gpt-oss"), ("low", "medium", "high")),
)
"""The steps of OpenAI's models."""

ADAPTIVE_STEPS: tuple[Effort, ...] = ("low", "medium", "high", "xhigh", "max")
"""The steps of Anthropic's models that decide themselves how long to think."""

GEMINI_BUDGETS: dict[Effort, int] = {
    "none": 0,
    "minimal": 512,
    "low": 1024,
    "medium": 8192,
    "high": -1,
    "xhigh": 24_576,
    "max": 24_576,
}
"""Tokens of thinking of Gemini 2.5; -1 lets the model choose."""

GEMINI_LEVELS: tuple[Effort, ...] = ("minimal", "low", "medium", "high")
"""The levels of thinking of Gemini from version 3 on."""


def openai_effort(model: str, effort: Effort, option: str, unsupported: Collection[str]) -> Effort | None:
    """The step that a model at OpenAI takes for an effort; a model that is not known may take any.

    >>> [openai_effort(model, "max", "e", ()) for model in ("o3", "gpt-5", "gpt-5.2", "qwen3")]
    ['high', 'high', 'xhigh', 'max']
    >>> openai_effort("gpt-5.2", "xhigh", "e", {"e=xhigh"})
    'high'
    """
    steps: Sequence[Effort] = next((steps for pattern, steps in _STEPS if pattern.match(model)), EFFORTS)
    return nearest_step(effort, steps, option, unsupported)


def nearest_step(
    effort: Effort, steps: Sequence[Effort], option: str, unsupported: Collection[str] = ()
) -> Effort | None:
    """The step that is nearest to an effort among those not rejected, of two the lower one; None if all were."""
    left: list[Effort] = [step for step in steps if not unsupported or f"{option}={step}" not in unsupported]
    if effort in left:
        return effort
    place = EFFORTS.index(effort)
    return min(left, key=lambda step: abs(EFFORTS.index(step) - place)) if left else None
