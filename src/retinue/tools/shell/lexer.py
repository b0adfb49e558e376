"""Lexer for shell commands: splits a command line into words and operators as a shell does, with quotes and comments.

Text that different shells read differently, or that only a running shell could expand, raises `Unclear`. So does text
of more than `MAX_COMMAND_BYTES` or `MAX_PIECES`: the work of reading a command is bounded.
Programs and their risk are not a matter of this module.
"""

from __future__ import annotations

import re

from msgspec import Struct

SUBSTITUTION = "substitutions such as $(...), `...` and <(...) are not read; run the inner command by itself"
ARITHMETIC = "$((...)) is not read; write the number out"
HERE_DOCUMENT = "here-documents are read only where their end stands in quotes, such as <<'EOF', in a line of its own"
BROKEN_LINE = "the line is broken in the middle of a sign; break it between two words"

MAX_COMMAND_BYTES = 128 * 1024 - 1
"""Bytes of a command; Linux passes no longer text to a shell."""
MAX_PIECES = 20_000
"""Pieces of a command: words, operators, quoted passages, parameters and escaped characters."""

_ORDINARY = re.compile(r"[^ \t\n#();<>|&\\'\"$`{*?\[~]+")
"""Characters that stand for themselves outside of quotes."""
_IN_QUOTES = re.compile(r'[^"\\$`]+')
"""Characters that stand for themselves in double quotes."""
_MAY_GROW = frozenset("<>&|;(")
"""Operators that become another operator if one more character follows, even after a line continuation."""
_OPERATOR = re.compile(r"&>>|<<<|&&|\|\||\|&|>>|>\||<<|<>|&>|>&|<&|;;|[();<>|&\n]")
_NUMBER = re.compile(r"[0-9]+")
_DIGITS = frozenset("0123456789")
_DUPLICATED = re.compile(r"[ \t]*+(?!\\\n)(?:-(?:[ \t\n;&|()<>]|\Z)|[^-])", re.DOTALL)
"""What follows `>&` and `<&`: some shells read `>&-`, also with blanks before the `-`, as a whole, and a word that goes
on from there as the next one."""
_NUMBERS = frozenset(("$?", "$#", "$$"))
"""Parameters that expand to one number and never to several words."""
_END_OF_TEXT = re.compile(r"(-?)[ \t]*(['\"])([A-Za-z_][A-Za-z0-9_]*)\2(?=[ \t\n;&|()<>])")
"""What follows << in a here-document without expansions: its quoted end marker."""
_PLAIN_PARAMETER = re.compile(r"\$(?:[A-Za-z_][A-Za-z0-9_]*|[0-9@*#?$!-]|\{[A-Za-z_][A-Za-z0-9_]*\})")


class Word(Struct, frozen=True):
    """One word without its quotes.

    `plain`: no part is quoted, so it may be a reserved word. `bare`: number of characters before the first quote.
    `varies`: the program gets another text (a variable, or braces that some shells expand). `splits`: it may expand to
    several words or none (an unquoted variable). `opens`: it is a pattern for file names.
    """

    text: str
    plain: bool = True
    bare: int = 0
    varies: bool = False
    splits: bool = False
    opens: bool = False


class Operator(Struct, frozen=True):
    text: str


class Unclear(ValueError):
    """The text cannot be parsed with certainty; the message tells the model what to write instead."""


def tokens(command: str) -> list[Word | Operator]:
    """The words and operators of a command, in order; raises `Unclear`.

    >>> [token.text for token in tokens("grep 'a|b' x|head # the rest")]
    ['grep', 'a|b', 'x', '|', 'head']
    """
    if len(command) > MAX_COMMAND_BYTES or len(command.encode("utf-8", "replace")) > MAX_COMMAND_BYTES:
        limit = f"{MAX_COMMAND_BYTES} bytes"
        raise Unclear(f"the command has more than {limit}; write long texts to a file with a file tool")
    return _Lexer(command).tokens()


class _Lexer:
    def __init__(self, command: str) -> None:
        self._command = command
        self._at = 0
        self._pieces = 0
        self._found: list[Word | Operator] = []
        self._texts: list[tuple[str, bool]] = []
        self._begin()

    def _begin(self) -> None:
        self._letters: list[str] = []
        self._bare: int | None = None
        self._varies = self._splits = self._opens = self._braced = False

    @property
    def _quoted(self) -> bool:
        return self._bare is not None

    def _quote(self) -> None:
        """Mark the rest of the word as quoted."""
        if self._bare is None:
            self._bare = len("".join(self._letters))

    def _end_word(self) -> None:
        if self._letters or self._quoted:
            text = "".join(self._letters)
            expands = self._braced and ("," in text or ".." in text)
            self._found.append(
                Word(
                    text,
                    plain=not self._quoted,
                    bare=len(text) if self._bare is None else self._bare,
                    varies=self._varies or expands,
                    splits=self._splits or expands,
                    opens=self._opens,
                )
            )
        self._begin()

    def _count(self) -> None:
        self._pieces += 1
        if self._pieces > MAX_PIECES:
            raise Unclear(f"the command has more than {MAX_PIECES} words and signs; split it, or write it to a file")

    def _next(self, ahead: int = 0) -> str:
        return self._command[self._at + ahead : self._at + ahead + 1]

    def tokens(self) -> list[Word | Operator]:
        while character := self._next():
            self._count()
            if ordinary := _ORDINARY.match(self._command, self._at):
                self._letters.append(ordinary[0])
                self._at = ordinary.end()
                continue
            match character:
                case " " | "\t":
                    self._end_word()
                    self._at += 1
                case "#" if not (self._letters or self._quoted):
                    end = self._command.find("\n", self._at)
                    self._at = len(self._command) if end < 0 else end
                case "(" | ")" | ";" | "<" | ">" | "|" | "&" | "\n":
                    self._operator()
                case "\\":
                    self._escape()
                case "'":
                    self._single()
                case '"':
                    self._double()
                case "$":
                    self._parameter(quoted=False)
                case "`":
                    raise Unclear(SUBSTITUTION)
                case _:
                    self._braced = self._braced or character == "{"
                    self._opens = self._opens or character in "*?[~"
                    self._letters.append(character)
                    self._at += 1
        self._end_word()
        if self._texts:
            raise Unclear(HERE_DOCUMENT)
        return self._found

    def _operator(self) -> None:
        found = _OPERATOR.match(self._command, self._at)
        assert found is not None, "every character that begins an operator is an operator"
        if found[0][-1] in "<>" and self._command[found.end() : found.end() + 1] == "(":
            raise Unclear(SUBSTITUTION)
        if found[0] in ("&>", "&>>"):  # some shells read this as the end of a command, and the file as the next one
            raise Unclear(f"{found[0]} means different things to different shells; write > FILE 2>&1")
        if found[0] in _MAY_GROW and self._goes_on(found.end()):
            raise Unclear(BROKEN_LINE)
        if found[0] == "(" and self._command.startswith("(", found.end()):
            raise Unclear("(( is arithmetic to some shells; put a blank between two brackets, or write the number out")
        if found[0] in (">&", "<&") and not _DUPLICATED.match(self._command, found.end()):
            raise Unclear(f"write a plain number or - alone after {found[0]}")
        if found[0][0] in "<>":
            self._check_descriptor()
        self._end_word()
        self._found.append(Operator(found[0]))
        self._at = found.end()
        if found[0] == "<<":
            self._begin_text()
        elif found[0] == "\n":
            self._skip_texts()

    def _check_descriptor(self) -> None:
        """Drop the digit before a redirection: the 2 of 2> is not a word."""
        before = "".join(self._letters)
        if self._quoted or self._varies:
            return
        if before.startswith("{"):
            raise Unclear("a word in braces directly before < or > sets a variable in some shells; put a blank between")
        if before in _DIGITS:
            self._begin()
        elif _NUMBER.fullmatch(before):
            raise Unclear("numbers of descriptors are read up to 9; put a blank between a word and < or >")

    def _begin_text(self) -> None:
        """Begin a here-document; its text starts on the next line."""
        found = _END_OF_TEXT.match(self._command, self._at)
        if found is None:
            raise Unclear(HERE_DOCUMENT)
        self._texts.append((found[3], bool(found[1])))
        self._found.append(Word(found[3], plain=False))
        self._at = found.end()

    def _skip_texts(self) -> None:
        """Skip the here-documents that begin on this line, in order."""
        for end, indented in self._texts:
            self._count()
            tabs = "\t*" if indented else ""
            last = re.compile(rf"(?:^|(?<=\n)){tabs}{end}(?:\n|\Z)").search(self._command, self._at)
            if last is None:
                raise Unclear(HERE_DOCUMENT)
            self._at = last.end()
        self._texts = []

    def _check_break(self, passage: str) -> None:
        """Refuse a line break in quotes on the line of a here-document: shells differ in where its text begins."""
        if self._texts and "\n" in passage:
            raise Unclear(HERE_DOCUMENT)

    def _escape(self) -> None:
        escaped = self._next(1)
        if not escaped:
            raise Unclear("the command cannot be read (no escaped character)")
        self._check_break(escaped)
        self._at += 2
        if escaped != "\n":  # a line continuation is removed and does not even end a word
            self._quote()
            self._letters.append(escaped)

    def _goes_on(self, at: int) -> bool:
        return self._command.startswith("\\\n", at)

    def _single(self) -> None:
        end = self._command.find("'", self._at + 1)
        if end < 0:
            raise Unclear("the command cannot be read (no closing quotation)")
        self._check_break(self._command[self._at : end])
        self._quote()
        self._letters.append(self._command[self._at + 1 : end])
        self._at = end + 1

    def _double(self) -> None:
        self._quote()
        self._at += 1
        while (character := self._next()) != '"':
            self._count()
            if ordinary := _IN_QUOTES.match(self._command, self._at):
                self._check_break(ordinary[0])
                self._letters.append(ordinary[0])
                self._at = ordinary.end()
                continue
            self._check_break(character)
            match character:
                case "":
                    raise Unclear("the command cannot be read (no closing quotation)")
                case "`":
                    raise Unclear(SUBSTITUTION)
                case "$":
                    self._parameter(quoted=True)
                case "\\" if self._next(1) in ("$", "`", '"', "\\", "\n") and self._next(1):
                    self._check_break(self._next(1))
                    if self._next(1) != "\n":
                        self._letters.append(self._next(1))
                    self._at += 2
                case _:
                    self._letters.append(character)
                    self._at += 1
        self._at += 1

    def _parameter(self, *, quoted: bool) -> None:
        after = self._next(1)
        if after == "(":
            raise Unclear(ARITHMETIC if self._next(2) == "(" else SUBSTITUTION)
        if self._goes_on(self._at + 1):  # the joined lines may be a substitution
            raise Unclear(BROKEN_LINE)
        if after in ("'", '"') and after and not quoted:
            raise Unclear("$'...' and $\"...\" mean different things to different shells; write plain quotes")
        found = _PLAIN_PARAMETER.match(self._command, self._at)
        if found is None and after in ("{", "["):
            raise Unclear("expansions such as ${name:-text} are not read; write the value out")
        text = "$" if found is None else found[0]
        self._varies = self._varies or found is not None
        self._splits = self._splits or (found is not None and not quoted and text not in _NUMBERS)
        self._letters.append(text)
        self._at += len(text)
