"""Agent files: any text is agents, no agent file, or an error with a line of the file.

The first byte of an input chooses the name of the file, and with it the program that it belongs to.
"""

from __future__ import annotations

import re

import msgspec

from retinue.config.agent_files.agent_file import (
    KNOWN_KEYS,
    NotAnAgentFile,
    UnusableAgentFile,
    read_agent_file,
)
from retinue.config.agent_files.translation import FormatTables
from retinue.tools.builtin import BUILTIN
from tests.fuzz.target import Target

PATHS = (
    *(".claude/agents/a.md", ".codex/agents/a.toml", ".opencode/agent/a.md", ".gemini/agents/a.md"),
    *(".github/agents/a.agent.md", "agents/a.md"),
)
TRANSLATION = FormatTables(own_tools=frozenset(BUILTIN), providers={"anthropic": "anthropic", "house": "openai-chat"})
NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]{0,63}")


def check(data: bytes) -> None:
    """The file `data[1:]` is agents whose settings can be encoded, or an error with a reason."""
    path = PATHS[(data[0] if data else 0) % len(PATHS)]
    text = data[1:].decode("utf-8", "replace")
    lines = len(re.split("\r\n|\r|\n", text))
    try:
        agents = read_agent_file(path, text, TRANSLATION)
    except NotAnAgentFile:
        return
    except UnusableAgentFile as error:
        check_text(error.reason, error.line, lines)
        return
    for agent in agents:
        assert agent.name
        assert len(agent.name) <= 200
        assert agent.path == path
        msgspec.json.encode(agent.settings)
        for warning in agent.warnings:
            check_text(warning.text, warning.line, lines)


def check_text(text: str, line: int | None, lines: int) -> None:
    """A warning or an error is short and names a line that there is."""
    assert text
    assert len(text) < 2000
    assert line is None or 1 <= line <= lines + 1


TARGET = Target(
    check=check,
    seeds=(
        b"\x00---\nname: dig\ndescription: Digs.\ntools: Read, Grep, Bash(git log:*)\nmodel: sonnet\n---\nYou dig.\n",
        b'\x01name = "dig"\ndescription = "Digs."\ndeveloper_instructions = """x"""\nsandbox_mode = "read-only"\n',
        b"\x02---\ndescription: Digs.\nmode: subagent\ntools:\n  write: false\npermission:\n"
        b"  bash:\n    '*': ask\n---\nDig.",
        b"\x03---\nkind: local\nname: dig\ndescription: Digs.\ntools:\n  - read_file\ntimeout_mins: 3\n---\nDig.\n",
        b"\x04---\ndescription: 'Digs.'\ntools: ['search', \"edit\"]\nmcp-servers:\n  a: {command: x}\n---\nDig.\n",
        b"\x05\xef\xbb\xbf---\r\nname: dig\r\ndescription: >\r\n  Digs\r\n  deep.\r\n---\r\nDig.\r\n",
    ),
    words=(
        *(
            b"---\n",
            b"\n",
            b": ",
            b"- ",
            b"  ",
            b"\t",
            b"'",
            b'"',
            b'"""',
            b"[",
            b"]",
            b"{",
            b"}",
            b"&a ",
            b"*a",
            b"!!str ",
        ),
        *(
            b"| \n",
            b">-\n",
            b"<<: ",
            b"null",
            b"true",
            b"1e999",
            b"0x1",
            b"1979-05-27",
            b"#",
            b"?",
            b"%",
            b"=",
            b"\x00",
        ),
        *(name.encode() + b": " for name in sorted(KNOWN_KEYS)),
    ),
    seconds=10.0,
)
