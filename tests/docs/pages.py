"""Pages of the documentation, parsed into prose and blocks of code."""

import re
from functools import cache
from pathlib import Path
from textwrap import dedent
from typing import NamedTuple

ROOT = Path(__file__).parents[2]
DOCS = ROOT / "docs"

FENCE = re.compile(r" *(`{3,})(\w*)(?: title=\"([^\"]+)\")?")
HEADING = re.compile(r"#+ +(.+)")


class Block(NamedTuple):
    """A block of code, the line where its content begins, and the file that it is if it has a title."""

    line: int
    language: str
    title: str
    code: str


class Page(NamedTuple):
    """A page: prose with its blocks of code taken out (the lines stay), and the blocks."""

    path: Path
    prose: str
    blocks: tuple[Block, ...]

    @property
    def name(self) -> str:
        """Its path in the repository."""
        return self.path.relative_to(ROOT).as_posix()

    @property
    def anchors(self) -> set[str]:
        """The anchors of its headings, as code hosts make them."""
        headings = filter(None, map(HEADING.fullmatch, self.prose.splitlines()))
        return {re.sub(r"[^\w -]", "", found[1].strip().lower()).replace(" ", "-") for found in headings}

    def of(self, *languages: str) -> list[Block]:
        """The blocks in these languages."""
        return [block for block in self.blocks if block.language in languages]


@cache
def read(path: Path) -> Page:
    """The page in a file."""
    prose: list[str] = []
    blocks: list[Block] = []
    content: list[str] = []
    fence, language, title = "", "", ""
    for number, line in enumerate(path.read_text(encoding="utf-8").splitlines(), 1):
        found = FENCE.match(line)
        if fence:
            if found and found[1] == fence:
                blocks.append(Block(number - len(content), language, title, dedent("\n".join(content))))
                fence = ""
            content.append(line)
            prose.append("")
        elif found:
            fence, language, title, content = found[1], found[2], found[3] or "", []
            prose.append("")
        else:
            prose.append(line)
    assert not fence, f"{path}: a block of code has no end"
    return Page(path, "\n".join(prose), tuple(blocks))


PAGES = [read(path) for path in sorted([*ROOT.glob("*.md"), *DOCS.rglob("*.md"), ROOT / "examples" / "README.md"])]
README = read(ROOT / "README.md")
