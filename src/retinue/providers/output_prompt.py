"""What is said to a model about the form of its answer, besides the field that a wire may have for it."""

from __future__ import annotations

from retinue.core.ports import Request


def told(request: Request) -> str:
    """The system text of a wire that has a field for schemas: any other demand is also made in words.

    OpenAI refuses to be asked for an object if nobody has told the model of JSON, and Anthropic has no field for it.
    """
    if request.output is None or request.output.mode == "json_schema":
        return request.system
    return told_in_words(request)


def told_in_words(request: Request) -> str:
    """The system text of a wire without such a field.

    >>> from retinue.core.agent import Output
    >>> told_in_words(Request(model="m", system="Be brief.", messages=[], output=Output()))
    'Be brief.\\n\\nGive your final answer as one JSON object, and nothing else.'
    """
    if request.output is None:
        return request.system
    return f"{request.system}\n\n{request.output.in_words}" if request.system else request.output.in_words
