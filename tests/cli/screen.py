"""The screen of a command on a pseudo-terminal of any width, high enough that nothing scrolls away."""

from __future__ import annotations

import fcntl
import os
import pty
import re
import struct
import subprocess
import sys
import termios

HIGH = 200
_PIECE = re.compile(r"\x1b\[(?P<parameters>[\d;?]*)(?P<command>[A-Za-z])|(?P<character>[\s\S])")


def on_screen(*arguments: str, width: int, **env: str) -> tuple[int, list[str]]:
    """A command whose stdin, stdout and stderr are one terminal: its exit code, and the screen at the end."""
    inside, outside = pty.openpty()[::-1]
    fcntl.ioctl(inside, termios.TIOCSWINSZ, struct.pack("HHHH", HIGH, width, 0, 0))
    without = {name: value for name, value in os.environ.items() if name not in ("COLUMNS", "LINES")}
    process = subprocess.Popen(
        [sys.executable, "-m", "retinue", *arguments],
        stdin=inside,
        stdout=inside,
        stderr=inside,
        env=without | {"TERM": "xterm-256color"} | env,
        start_new_session=True,
    )
    os.close(inside)
    written = b""
    try:
        while piece := os.read(outside, 65536):
            written += piece
    except OSError:
        pass  # the other side is closed: a terminal reports its end with an error
    os.close(outside)
    return process.wait(), drawn(written.decode(), width)


def drawn(written: str, width: int) -> list[str]:
    """The lines of a screen after this output."""
    lines: list[list[str]] = [[]]
    row = column = 0
    for piece in _PIECE.finditer(written):
        match piece["command"], piece["character"]:
            case None, "\r":
                column = 0
            case None, "\n":
                row += 1
            case None, "\b":
                column = max(0, column - 1)
            case None, str(character):
                if column == width:
                    row, column = row + 1, 0
                lines += [[] for _ in range(row + 1 - len(lines))]
                lines[row] += " " * (column + 1 - len(lines[row]))
                lines[row][column] = character
                column += 1
            case "A", _:
                row = max(0, row - int(piece["parameters"] or 1))
            case "C", _:
                column += int(piece["parameters"] or 1)
            case "D", _:
                column = max(0, column - int(piece["parameters"] or 1))
            case "J", _:
                assert not piece["parameters"]
                lines = [*lines[:row], lines[row][:column] if row < len(lines) else []]
            case "K", _:
                assert piece["parameters"] in ("", "2")
                lines += [[] for _ in range(row + 1 - len(lines))]
                lines[row] = [] if piece["parameters"] else lines[row][:column]
            case "m", _:
                pass  # colours
            case "h" | "l", _:
                pass  # the cursor is shown or hidden
            case command, _:
                raise AssertionError(f"unknown escape code: {command!r}")
    return ["".join(line).rstrip() for line in lines]
