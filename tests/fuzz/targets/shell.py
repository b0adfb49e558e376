"""Shell commands: what real shells start and write is what the parser found, or the command is refused.

The oracles are dash and bash, with stub programs in a sandbox, and tree-sitter's grammar of bash. Without bubblewrap
the shells are left out: no generated line runs outside of a sandbox.
"""

from __future__ import annotations

import random
import re
from functools import cache
from typing import Any

from retinue.core.policy import Policy, Risk
from retinue.tools.shell.parser import ParsedCommand, parse, refusal_of
from retinue.tools.shell.risk import risk_of
from tests.fuzz.shell_runner import STUBS, Shells
from tests.fuzz.target import Target

POLICY = Policy(allowed_commands=STUBS)
MAX_LENGTH = 2000

_shells: list[Shells] = []


def check(data: bytes) -> None:
    """Compare what the parser found with what shells do."""
    command = data.decode(errors="replace")
    parsed = parse(command)
    risk = risk_of(parsed)
    if "\0" in command or len(command) > MAX_LENGTH or refusal_of(parsed, POLICY) is not None:
        return
    for program in programs_in(command):
        assert program in {step.program for step in parsed.steps}, f"{program} is a command to the grammar of bash"
    if not _shells:
        _shells.append(Shells())
    for done in _shells[0].run(command):
        _compare(parsed, risk, done)


def _compare(parsed: ParsedCommand, risk: Risk, done: dict[str, Any]) -> None:
    for name, *words in done["started"]:
        steps = [step for step in parsed.steps if step.name == name]
        assert steps, f"{name} was started"
        known = any(step.varies or step.patterns or step.arguments == tuple(words) for step in steps)
        assert known, f"{name} was started with {words}"
    if done["files"]:
        assert any(step.writes for step in parsed.steps), f"{done['files']} were written"
        assert risk is not Risk.LOW, f"{done['files']} were written by a command of low risk"


# ---- the grammar -----------------------------------------------------------------------------------------------------


@cache
def _grammar() -> Any:
    try:
        import tree_sitter
        import tree_sitter_bash
    except ImportError:
        return None
    return tree_sitter.Parser(tree_sitter.Language(tree_sitter_bash.language()))


def programs_in(command: str) -> set[str]:
    """Plain names of stubs that are commands in the grammar of bash; empty if it does not understand the command."""
    grammar = _grammar()
    # The grammar ends here-documents at indented markers, too, does not join broken lines, and begins a group at the
    # brace of `x={`.
    if grammar is None or len(command) > 300 or any(sign in command for sign in ("<<", "\\\n", "={")):
        return set()
    root = grammar.parse(command.encode()).root_node
    if root.has_error:
        return set()
    found: set[str] = set()
    nodes = [root]
    while nodes:
        node = nodes.pop()
        nodes += node.children
        if node.type == "command_name" and (name := node.text.decode()) in STUBS:
            found.add(name)
    return found


# ---- inputs ----------------------------------------------------------------------------------------------------------

CODE = ("a[$(>made)]", "$(>made)", "`>made`", ">made", "-p a[$(>made)]", "PATH", "x[0]")
NAMES = ("x", "y", "a", "ls", "PATH", "IFS", "made", "1", "RANDOM", "OPTIND", "SECONDS", "LANG", "HOME", "PS4", "ENV")
PLAIN = (
    *STUBS,
    "1",
    "0",
    "x",
    "-n",
    "-eq",
    "=",
    "]",
    "{}",
    "!",
    "in",
    "do",
    "done",
    "then",
    "fi",
    "{",
    "}",
    "12",
    "esac",
)
QUOTES = ("'{}'", '"{}"', "\\{}", "{}", "'{}", "$'{}'", '"{}')


def generate(rng: random.Random) -> bytes:
    """A command line of random structure, nearly always one that a shell understands."""
    return _line(rng, 3).encode()


def _line(rng: random.Random, depth: int) -> str:
    line = _command(rng, depth)
    while rng.random() < 0.45:
        line += rng.choice(("; ", " && ", " || ", " | ", "\n", " & ", "&", ";", "|", " |& ", ";;", "\\\n")) + _command(
            rng, depth
        )
    return line


def _command(rng: random.Random, depth: int) -> str:
    kind = rng.random()
    if depth and kind < 0.3:
        inner = _line(rng, depth - 1)
        return rng.choice(
            (
                f"( {inner} )",
                f"({inner})",
                f"{{ {inner}; }}",
                f"if {inner}; then {_line(rng, depth - 1)}; fi",
                f"while {inner}; do break; done",
                f"for {rng.choice(NAMES)} in {_word(rng)} {_word(rng)}; do {inner}; done",
                f"for x do {inner}; done",
                f"case {_word(rng)} in {_word(rng)}) {inner};; *) {inner};; esac",
                f"case a in a) {inner};& b) {inner};; esac",
                f"! {inner}",
                f"time {inner}",
                f"{rng.choice(NAMES)}() {{ {inner}; }}; {rng.choice(NAMES)}",
                f"(( {inner} ))",
                f"(({inner}))",
                f"[[ {_word(rng)} ]]",
                f"function x {{ {inner}; }}; x",
                f"echo $({inner})",
                f'echo "$({inner})"',
                f"echo `{inner}`",
                f"cat <({inner})",
                f"cat <<E\n{inner}\nE",
                f"cat <<'E'\n{inner}\nE",
                f"cat <<-'E' | b\n{inner}\n\tE\n{inner}",
                f"eval {inner}",
                f"coproc {inner}",
                f"{inner} {rng.choice(('>', '<', '>>', '2>', '>&', '<&', '<>', '>|', '&>'))} {_word(rng)}",
            )
        )
    words = [_word(rng) for _ in range(rng.choice((0, 0, 1, 1, 2, 3)))]
    builtin = rng.choice(
        (
            *("wait", "test", "[", "printf", "read", "export", "set", "exit", "break", "cd", "true", ":", "echo"),
            *(
                "printf -v",
                "wait -p",
                "wait -n -p",
                "test -v",
                "unset",
                "let",
                "declare",
                "local",
                "command",
                "exec",
                "trap",
            ),
        )
    )
    program = builtin if kind > 0.75 else rng.choice((*STUBS, *STUBS, _word(rng)))
    assigned = f"{rng.choice(NAMES)}={_word(rng)} " if rng.random() < 0.25 else ""
    if rng.random() < 0.1:
        assigned = assigned.replace(" ", "; ")
    line = f"{assigned}{program} {' '.join(words)}".strip(" ")
    if rng.random() < 0.25:
        redirection = rng.choice(
            (
                ">made",
                "> made",
                "2>made",
                "12>made",
                "{x}>made",
                "{PATH}>/dev/null",
                ">&2",
                "<made",
                "<>made",
                ">&made",
                "2>&1",
                "<<<a",
            )
        )
        line = rng.choice((f"{line} {redirection}", f"{redirection} {line}", line + redirection))
    return line


def _word(rng: random.Random) -> str:
    text = rng.choice(
        (*PLAIN, *PLAIN, *CODE, "$x", "${x}", "$1", "$?", "*", "?", "[a]", "{a,b}", "~", "%s", "%d", "%n", "#a")
    )
    if rng.random() < 0.35:
        text = rng.choice(QUOTES).format(text)
    if rng.random() < 0.15:
        text += rng.choice(PLAIN)
    if rng.random() < 0.05:
        text = re.sub(r"^(.)", r"\1\\\n", text, count=1)
    return text


TARGET = Target(
    check=check,
    generate=generate,
    seeds=(
        b"a x | b && c > made; ls 2>&1",
        b'for x in a b; do [ -f "$x" ] && cat "$x"; done',
        b"if a; then b; elif c; then ls; else cat; fi",
        b"case x in x) a;; y|z) b;; esac",
        b"cat <<'E' | b\na $(c)\nE\nc",
        b"x='a[$(>made)]'; ((x))",
        b"{ a; b; } > made 2>/dev/null &\nwait $!",
        b"(a; (b)) || ! c",
        b"printf '%s\\n' \"$x\" 'y z' w\\ v",
        b"a() { b; }; a",
    ),
    words=tuple(
        word.encode()
        for word in (
            *(
                *STUBS,
                " ",
                "\n",
                ";",
                "&",
                "&&",
                "||",
                "|",
                "|&",
                "&>",
                ">&",
                "<&",
                "<<",
                "<<-",
                "<<<",
                "<>",
                ">|",
                ">made",
            ),
            *(
                "'",
                '"',
                "\\",
                "\\\n",
                "$",
                "$x",
                "${x}",
                "$(",
                "$((",
                "`",
                "(",
                ")",
                "((",
                "))",
                "{",
                "}",
                "{x}>",
                "[",
                "]",
                "[[",
            ),
            *(
                "if ",
                "then ",
                "fi",
                "for x in ",
                "for ((",
                "do ",
                "done",
                "while ",
                "case x in ",
                ") ",
                ";;",
                ";&",
                "esac",
                "! ",
            ),
            *(
                "time ",
                "function ",
                "coproc ",
                "select x in ",
                "#",
                "*",
                "?",
                "~",
                "{a,b}",
                "=",
                "x=",
                "x+=",
                "PATH=",
                "a[0]=",
            ),
            *(
                "export ",
                "read ",
                "set -",
                "wait ",
                "printf ",
                "test ",
                "exit ",
                "a()",
                "<<'E'\n",
                "\nE\n",
                "\t",
                "\r",
                "$'",
                '$"',
            ),
            *(
                "a[$(>made)]",
                "$(>made)",
                "%n",
                "-v ",
                "-p ",
                "-eq ",
                "/dev/null",
                "2>&1",
                "12>",
                "\u00a0",
                "\u2028",
                "$!",
                "$?",
            ),
        )
    ),
    seconds=10.0,
    max_bytes=400,
)
