"""Builds the documentation site: stages the pages, writes the configuration, runs Zensical, and checks the result.

`make docs-site` runs it. The stage has the layout of the repository, so that links between pages, also those that leave
`docs`, are the same in the repository and in the site. The navigation is made from `docs/README.md`.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from html.parser import HTMLParser
from pathlib import Path
from typing import NamedTuple, TypeAlias
from urllib.parse import unquote, urlsplit

from retinue.config.template import toml

ROOT = Path(__file__).resolve().parent.parent
INDEX = ROOT / "docs" / "README.md"
HOME = "README.md"
LEFT_OUT: dict[str, str] = {}
"""Pages of `docs` that are not in the navigation, each with the reason."""

LINK = re.compile(r"(!?\[[^\]]*\]\()([^)\s#]+)(#[^)\s]*)?\)")
ENTRY = re.compile(r"(?P<indent> *)- \[(?P<title>[^\]]+)\]\((?P<page>[^)]+)\)")
FENCE = re.compile(r" *(`{3,})")
LANGUAGES = {".py": "python", ".toml": "toml", ".json": "json", ".md": "markdown"}

Nav: TypeAlias = list["str | dict[str, str | Nav]"]


def main(out: Path) -> None:
    """Build the site in the folder `site` of `out`."""
    pages = out / "pages"
    shutil.rmtree(out, ignore_errors=True)
    stage(pages)
    config = out / "zensical.toml"
    config.write_text(configuration(navigation()), encoding="utf-8")
    zensical = Path(sys.executable).with_name("zensical")
    built = subprocess.run([zensical, "build", "--clean", "--strict", "--config-file", config], cwd=out)
    if built.returncode != 0:
        sys.exit(built.returncode)
    if mistakes := [*check(out / "site")]:
        sys.exit("\n".join(mistakes))
    print(out / "site" / "index.html")


# ---- the stage ------------------------------------------------------------------------------------------------------


def sources() -> list[Path]:
    """The pages of the repository: those of its root and those of `docs`."""
    return sorted([*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md")])


def stage(pages: Path) -> None:
    """Copy the pages, and everything in the repository that they link to.

    A folder that a page links to becomes a page too: its README, or a list of its files with their content.
    """
    waiting, staged = sources(), set[Path]()
    while waiting:
        source = waiting.pop()
        if source in staged:
            continue
        staged.add(source)
        target = pages / source.relative_to(ROOT)
        target.parent.mkdir(parents=True, exist_ok=True)
        if source.is_dir():
            (target / HOME).parent.mkdir(parents=True, exist_ok=True)
            (target / HOME).write_text(listing(source), encoding="utf-8")
        elif source.suffix == ".md":
            text = source.read_text(encoding="utf-8")
            target.write_text(rewritten(text, source), encoding="utf-8")
            waiting += linked(text, source)
        else:
            shutil.copyfile(source, target)


def linked(text: str, page: Path) -> Iterator[Path]:
    """The files and folders of the repository that a page links to; a folder with a README is its README."""
    for match in LINK.finditer(without_code(text)):
        target = target_of(match[2], page)
        if target is not None:
            yield target / HOME if (target / HOME).exists() else target


def target_of(link: str, page: Path) -> Path | None:
    """Where a relative link leads; None for an address, and for what is not in the repository."""
    if urlsplit(link).scheme:
        return None
    target = Path(os.path.normpath(page.parent / unquote(link)))
    return target if target.exists() and target.is_relative_to(ROOT) else None


def rewritten(text: str, page: Path) -> str:
    """The page with the links on folders leading to their pages."""

    def rewrite(match: re.Match[str]) -> str:
        target = target_of(match[2], page)
        if target is None or not target.is_dir():
            return match[0]
        return f"{match[1]}{match[2].rstrip('/')}/{HOME}{match[3] or ''})"

    return LINK.sub(rewrite, text)


def listing(folder: Path) -> str:
    """A page with the content of the files in a folder that has no README."""
    name = folder.relative_to(ROOT).as_posix()
    parts = [f"# {name}"]
    for file in sorted(path for path in folder.iterdir() if path.is_file()):
        language = LANGUAGES.get(file.suffix, "text")
        parts.append(f"## {file.name}\n\n````{language}\n{file.read_text(encoding='utf-8').rstrip()}\n````")
    return "\n\n".join(parts) + "\n"


def without_code(text: str) -> str:
    """The text without its blocks of code."""
    kept: list[str] = []
    fence = ""
    for line in text.splitlines():
        found = FENCE.match(line)
        if fence:
            fence = "" if found and found[1] == fence else fence
        elif found:
            fence = found[1]
        else:
            kept.append(line)
    return "\n".join(kept)


# ---- the navigation -------------------------------------------------------------------------------------------------


class Entry(NamedTuple):
    """A page in the index: how deep it is nested, its title, and its path in the repository."""

    depth: int
    title: str
    page: str


def entries() -> Iterator[tuple[str, list[Entry]]]:
    """The sections of the index, each with its pages."""
    for section in re.split(r"^## ", INDEX.read_text(encoding="utf-8"), flags=re.MULTILINE)[1:]:
        heading, _, body = section.partition("\n")
        found = filter(None, map(ENTRY.match, body.splitlines()))
        yield heading.strip(), [Entry(len(each["indent"]) // 4, each["title"], place(each["page"])) for each in found]


def place(link: str) -> str:
    """The path in the repository of a page that the index links to."""
    return Path(os.path.normpath(INDEX.parent / link)).relative_to(ROOT).as_posix()


def navigation() -> Nav:
    """The README, the index, and the sections of the index."""
    nav: Nav = [{"Home": HOME}, {"Documentation": place(INDEX.name)}]
    for heading, pages in entries():
        nav.append({heading: nested(pages)})
    return nav


def nested(pages: list[Entry]) -> Nav:
    """The pages of a section; a page with pages below it becomes the first of a section of its own.

    >>> nested([Entry(0, "A", "a.md"), Entry(0, "B", "b.md"), Entry(1, "C", "c.md")])
    [{'A': 'a.md'}, {'B': [{'Overview': 'b.md'}, {'C': 'c.md'}]}]
    """
    nav: Nav = []
    for index, entry in enumerate(pages):
        if entry.depth > 0:
            continue
        below: list[Entry] = []
        for later in pages[index + 1 :]:
            if later.depth == 0:
                break
            below.append(later._replace(depth=later.depth - 1))
        nav.append({entry.title: [{"Overview": entry.page}, *nested(below)] if below else entry.page})
    return nav


def configuration(nav: Nav) -> str:
    """The configuration with the navigation and the folders."""
    added = f'docs_dir = "pages"\nsite_dir = "site"\nnav = {toml(nav)}\n'
    return (
        (ROOT / "docs" / "zensical.toml").read_text(encoding="utf-8").replace("[project]\n", f"[project]\n{added}", 1)
    )


# ---- the result -----------------------------------------------------------------------------------------------------


class _Links(HTMLParser):
    """Collects what a page links to and loads, and the ids of its elements."""

    def __init__(self) -> None:
        super().__init__()
        self.links: list[str] = []
        self.loads: list[str] = []
        self.ids: set[str] = set()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        found = dict(attrs)
        self.ids |= {name for key in ("id", "name") if (name := found.get(key))}
        if tag == "a" and (link := found.get("href")):
            self.links.append(link)
        elif link := found.get("src") or (found.get("href") if tag == "link" else None):
            self.loads.append(link)


def check(site: Path) -> Iterator[str]:
    """Links of the built pages that lead nowhere, and everything that they load from other hosts."""
    pages = {page: read(page) for page in sorted(site.rglob("*.html"))}
    for page, found in pages.items():
        name = page.relative_to(site)
        yield from (f"{name}: loads {address}" for address in found.loads if urlsplit(address).netloc)
        if page.name != "404.html":  # its links are made for the root of a server
            yield from (f"{name}: {link} leads nowhere" for link in found.links if not leads(link, page, pages))
    for sheet in site.rglob("*.css"):
        if re.search(r"url\(\s*['\"]?(?:https?:)?//", sheet.read_text(encoding="utf-8")):
            yield f"{sheet.relative_to(site)}: loads from another host"


def read(page: Path) -> _Links:
    """What is on a built page."""
    found = _Links()
    found.feed(page.read_text(encoding="utf-8"))
    return found


def leads(link: str, page: Path, pages: dict[Path, _Links]) -> bool:
    """Whether a link of a built page leads to a page or file of the site, or to another host."""
    parts = urlsplit(link)
    if parts.scheme or parts.netloc:
        return True
    target = Path(os.path.normpath(page.parent / unquote(parts.path))) if parts.path else page
    if target.is_dir():
        target /= "index.html"
    if target not in pages:
        return target.is_file()
    return not parts.fragment or unquote(parts.fragment) in pages[target].ids


if __name__ == "__main__":
    main(Path(sys.argv[1]).resolve())
