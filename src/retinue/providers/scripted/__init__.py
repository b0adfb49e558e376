"""Scripted models: replies, tool calls and failures written beforehand, for tests, examples and demonstrations."""

from retinue.providers.scripted.file import ScriptFileProvider, WrittenLine, read_script
from retinue.providers.scripted.provider import ScriptedProvider, played
from retinue.providers.scripted.script import (
    Fails,
    Hangs,
    Improvised,
    Line,
    Script,
    Speaks,
    calls,
    calls_verbatim,
    fails,
    hangs,
    says,
    streams,
    together,
)

__all__ = [
    "Fails",
    "Hangs",
    "Improvised",
    "Line",
    "Script",
    "ScriptFileProvider",
    "ScriptedProvider",
    "Speaks",
    "WrittenLine",
    "calls",
    "calls_verbatim",
    "fails",
    "hangs",
    "played",
    "read_script",
    "says",
    "streams",
    "together",
]
