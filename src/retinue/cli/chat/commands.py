"""What a person can say in a chat: words for the model, or one of a few commands that begin with a slash."""

from __future__ import annotations

from difflib import get_close_matches
from textwrap import wrap
from typing import Literal, TypeAlias

from msgspec import Struct

Name: TypeAlias = Literal["help", "status", "tools", "cost", "agents", "subagents", "clear", "quit"]

COMMANDS: dict[Name, tuple[str, str]] = {
    "help": ("", "this list"),
    "status": ("", "model, session, run, turns, tokens, cost, and whether it may delegate"),
    "tools": ("", "what the model is offered"),
    "cost": ("", "tokens and money of this conversation, run by run"),
    "agents": ("", "the agents of the settings, and the runs of this chat with their state"),
    "subagents": ("[on|off]", "let the model delegate, or not; alone it switches"),
    "clear": ("", "begin a new conversation"),
    "quit": ("", "leave; so do Ctrl-D and exit"),
}
"""Every command with its argument and what it does."""

_NAMES: dict[str, Name] = {name: name for name in COMMANDS}

LEAVING = ("exit", "quit")
"""Words that leave without a slash."""


class Command(Struct, frozen=True):
    """One of the commands."""

    name: Name
    argument: str = ""


class Prompt(Struct, frozen=True):
    """Words for the model."""

    text: str


class Mistake(Struct, frozen=True):
    """A command that is none, and what to say about it."""

    message: str


Said: TypeAlias = Command | Prompt | Mistake


def understood(text: str) -> Said:
    r"""What was meant; text of several lines is always for the model.

    >>> understood("/subagents off"), understood("//etc/hosts?"), understood("exit")
    (Command(name='subagents', argument='off'), Prompt(text='/etc/hosts?'), Command(name='quit', argument=''))
    >>> understood("/statsu")
    Mistake(message='there is no command /statsu; did you mean /status? (/help lists them, // sends a slash)')
    """
    stripped = text.strip()
    if "\n" in stripped:
        return Prompt(text)
    if stripped.startswith("//"):
        return Prompt(stripped[1:])
    if stripped.lower() in LEAVING:
        return Command("quit")
    if not stripped.startswith("/"):
        return Prompt(text)
    word, _, argument = stripped[1:].partition(" ")
    name = _NAMES.get(word.lower())
    if name is None:
        return Mistake(_unknown(word))
    argument = argument.strip()
    if argument and not COMMANDS[name][0]:
        return Mistake(f"/{name} takes no argument")
    return Command(name, argument)


def _unknown(word: str) -> str:
    near = [] if "/" in word else get_close_matches(word.lower(), COMMANDS, n=1)  # a path is no slip of the finger
    hint = f"; did you mean /{near[0]}?" if near else ""
    return f"there is no command /{word}{hint} (/help lists them, // sends a slash)"


def help_lines(columns: int) -> list[str]:
    """All commands, one line each where there is room, and how to write more than one line.

    >>> print("\\n".join(help_lines(48)[-1:]))
    twice at the prompt, or Ctrl-D, leaves.
    """
    shown = [(f"/{name} {argument}".rstrip(), about) for name, (argument, about) in COMMANDS.items()]
    width = max(len(left) for left, _ in shown)
    texts = (
        'A line that ends in \\ goes on; lines between """ and """ are one input; // begins text with a slash.',
        "Ctrl-C stops an answer, or clears the line; twice at the prompt, or Ctrl-D, leaves.",
    )
    return [
        *(line for left, about in shown for line in _wrapped(f"{left:<{width}}  {about}", columns, indent=width + 2)),
        "",
        *(line for text in texts for line in _wrapped(text, columns)),
    ]


def _wrapped(text: str, columns: int, *, indent: int = 0) -> list[str]:
    return wrap(text, columns, subsequent_indent=" " * indent, break_on_hyphens=False, break_long_words=False)
