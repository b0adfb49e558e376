"""The system prompt of a request, with the required output format described in words where no request field does."""

from __future__ import annotations

from retinue.core.ports import Request


def system_prompt(request: Request) -> str:
    """The system prompt for a wire that has a request field for schemas; `json_object` is described in words as well.

    OpenAI rejects a request for a JSON object if no message mentions JSON, and Anthropic has no field for it.
    """
    if request.output is None or request.output.mode == "json_schema":
        return request.system
    return system_prompt_with_format(request)


def system_prompt_with_format(request: Request) -> str:
    """The system prompt for a wire without such a field: it ends with the output format in words.

    >>> from retinue.core.agent import Output
    >>> system_prompt_with_format(Request(model="m", system="Be brief.", messages=[], output=Output()))
    'Be brief.\\n\\nGive your final answer as one JSON object, and nothing else.'
    """
    if request.output is None:
        return request.system
    return f"{request.system}\n\n{request.output.in_words}" if request.system else request.output.in_words
