"""The four-field object that every call of `xzatoma` is answered with."""

from __future__ import annotations

from collections.abc import Mapping

from retinue.dialects.render import compact


def answer(metadata: Mapping[str, str], *, output: str = "", error: str | None = None) -> str:
    """As the model reads it.

    >>> answer({}, error="task_prompt cannot be empty")
    '{"success":false,"output":"","error":"task_prompt cannot be empty","metadata":{}}'
    """
    return compact({"success": error is None, "output": output, "error": error, "metadata": metadata})
