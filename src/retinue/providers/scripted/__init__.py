"""Scripted models: replies, tool calls and failures written beforehand, for tests, examples and demonstrations."""

from retinue.providers.scripted.file import MAX_SCRIPT_BYTES, ScriptFileLine, ScriptFileProvider, read_script
from retinue.providers.scripted.script import (
    AskedTurn,
    Line,
    LineFunction,
    Script,
    ScriptedFailure,
    ScriptedHang,
    ScriptedProvider,
    ScriptedReply,
    calls,
    calls_verbatim,
    fails,
    hangs,
    logged_turns,
    says,
    streams,
    together,
)

__all__ = [
    "MAX_SCRIPT_BYTES",
    "AskedTurn",
    "Line",
    "LineFunction",
    "Script",
    "ScriptFileLine",
    "ScriptFileProvider",
    "ScriptedFailure",
    "ScriptedHang",
    "ScriptedProvider",
    "ScriptedReply",
    "calls",
    "calls_verbatim",
    "fails",
    "hangs",
    "logged_turns",
    "read_script",
    "says",
    "streams",
    "together",
]
