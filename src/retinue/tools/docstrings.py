"""What a docstring in Google's style says about a function and its parameters."""

from __future__ import annotations

import re

_PARAMETERS = re.compile(r"(Args|Arguments|Parameters):\s*")
_SECTION = re.compile(
    r"(Args|Arguments|Parameters|Keyword Args|Returns?|Yields?|Raises|Examples?|Notes?|See Also|References|Todo"
    r"|Attributes|Warnings?|Warns):\s*|>>> .*"
)
_ENTRY = re.compile(r"\*{0,2}(?P<name>\w+)\s*(\([^)]*\))?\s*:\s*(?P<text>.*)")


def described(docstring: str) -> tuple[str, dict[str, str]]:
    """The text before the first section, and what the `Args:` section says about each parameter.

    >>> described('''Search the logs.
    ...
    ... Args:
    ...     query: what to look for,
    ...         as a regular expression
    ...     limit (int): how many lines
    ...
    ... Returns:
    ...     lines
    ... ''')
    ('Search the logs.', {'query': 'what to look for, as a regular expression', 'limit': 'how many lines'})
    """
    lines = docstring.splitlines()
    sections = [number for number, line in enumerate(lines) if _SECTION.fullmatch(line)]
    summary = "\n".join(lines[: sections[0]] if sections else lines).strip()
    about: dict[str, str] = {}
    for number in sections:
        if _PARAMETERS.fullmatch(lines[number]):
            about |= _entries(lines[number + 1 :])
    return summary, about


def _entries(lines: list[str]) -> dict[str, str]:
    """The entries of a section: the first sets the margin, what is further in goes on with the one before."""
    entries: dict[str, str] = {}
    margin, name = 0, ""
    for line in lines:
        text = line.strip()
        indent = len(line) - len(line.lstrip())
        if text and indent == 0:
            break
        margin = margin or indent
        entry = _ENTRY.fullmatch(text) if indent == margin else None
        if entry:
            name = entry["name"]
            entries[name] = entry["text"]
        elif name and text:
            entries[name] = f"{entries[name]} {text}".strip()
    return entries
