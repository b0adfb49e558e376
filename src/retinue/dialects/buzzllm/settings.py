"""The settings of `buzzllm`, `[buzzllm]`, and its named system prompts (`retinue run --system codesearch`)."""

from __future__ import annotations

from typing import Annotated

from msgspec import Meta, Struct

from retinue.dialects.base import NamedPrompt

SECTION = "buzzllm"

Seconds = Annotated[int, Meta(ge=1, le=86_400)]
ProcessCount = Annotated[int, Meta(ge=0, le=16)]


class BuzzllmSettings(Struct, frozen=True, kw_only=True):
    """Settings of the dialect `buzzllm`, the section `[buzzllm]` of a settings file.

    Pass them as `retinue.open(dialect_settings={"buzzllm": ...})`.

    >>> BuzzllmSettings(timeout_secs=60).warm_processes
    1
    """

    timeout_secs: Annotated[
        Seconds,
        Meta(description="Seconds that a subagent's process may take, after which it is killed.", examples=[900]),
    ] = 900
    warm_processes: Annotated[
        ProcessCount,
        Meta(
            description="Processes that are started ahead after the first call, so that the next ones begin at once.",
            examples=[1],
        ),
    ] = 1


DEFAULTS = BuzzllmSettings()


# The names and their tools are from the dialect's document; the texts are not. The document has no text for
# `pythonexec`, and its program sent the bare word; here it has one.
PROMPTS: dict[str, NamedPrompt] = {
    "websearch": NamedPrompt(
        "You answer questions from the web. Search first, read the pages that matter, and compare what they say. Give "
        "the address of every page that you rely on, and say so when you found nothing that can be trusted.",
        ("search_web", "scrape_webpage"),
    ),
    "codesearch": NamedPrompt(
        "You answer questions about the code in the current folder. Find the files, search them, and read what you "
        "quote. Name files and lines, and say so when the code does not tell.",
        ("bash_find", "bash_ripgrep", "bash_read"),
    ),
    "pythonexec": NamedPrompt(
        "You solve problems by running Python. Write small programs, look at what they print, and correct them until "
        "the result is certain. Give the result, and in a sentence how you got it.",
        ("python_execute",),
    ),
    "hackhub": NamedPrompt(
        "You help to build things quickly. Propose the smallest version that works, give the code for it, and name "
        "what was left out."
    ),
    "generate": NamedPrompt(
        "You write exactly what is asked for and nothing around it: no greeting, no explanation, no code fences."
    ),
    "helpful": NamedPrompt("You are a helpful assistant. Answer plainly and briefly, and say when you are not sure."),
    "replace": NamedPrompt(
        "You rewrite the text that you are given as the instruction says. Answer with the new text alone, in the form "
        "and indentation of the old one."
    ),
}
