"""Links, files, names, flags and settings in the documentation exist."""

import ast
import re
import shlex
import shutil
import subprocess
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import pytest
import typer
from msgspec import inspect

from docs.generate import pages as generated_pages
from retinue.app.settings_sections import SECTIONS
from retinue.cli.main import app
from retinue.config.validation import expected_type
from retinue.providers.catalog import ACP, SCRIPTED, WIRES
from tests.docs.pages import DOCS, PAGES, README, ROOT, Page, read

SOURCES = (ROOT / "src" / "retinue", ROOT)
LANGUAGES = {"python", "console", "toml", "yaml", "json", "js", "text", ""}
"""The allowed languages of blocks; a misspelt language would leave a block untested. Text cannot run."""

GENERATED_LANGUAGES = {"py", "pycon"}
"""What generated pages have besides: signatures, and sessions of docstrings, which run with the source."""

GENERATED = frozenset(generated_pages())

LINK = re.compile(r"\[[^\]]*\]\(([^)\s]+)\)")
INLINE_CODE = re.compile(r"`([^`\n]+)`")
SOURCE_FILE = re.compile(r"((?:[\w.-]+/)*[\w-]+\.py)(?::([A-Za-z_][\w.]*))?")
"""A file in a page, as in `engine/loop.py`, perhaps with a name in it, as in `engine/loop.py:drive`."""

PLACEHOLDER = "NAME"
"""Placeholders for names that a reader fills in."""

COMMAND = re.compile(r"(?:^|\s)(retinue [^`#&|]+)")

TRACE_OF_THE_WORKSHOP = re.compile(r"issues\s+show|(?<![\w}])/(?:work|root|home/(?!linuxbrew/)\w+|Users/\w+)/")

on_every_page = pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)


def test_the_readme_begins_with_title_sentence_picture_and_the_two_commands() -> None:
    text = README.path.read_text()
    start = re.match(r"# Retinue\n\nRetinue is [^#!`]+\.\n\n!\[[^\]]+\]\((\S+)\)\n", text)

    assert start is not None
    assert (ROOT / start[1]).is_file()
    assert README.blocks[0].language == "sh"
    assert README.blocks[0].code.splitlines() == ["make demo", "make test"]
    assert README.blocks[0].line < 25
    targets = re.findall(r"^([a-z]+):", (ROOT / "Makefile").read_text(), re.MULTILINE)
    assert {"demo", "test", "picture"} <= set(targets)


@pytest.mark.parametrize("picture", sorted((DOCS / "images").glob("*.svg")), ids=lambda path: path.name)
def test_a_picture_is_valid_and_loads_nothing_from_other_hosts(picture: Path) -> None:
    text = picture.read_text(encoding="utf-8")
    svg = ElementTree.fromstring(text)

    assert svg.tag == "{http://www.w3.org/2000/svg}svg"
    assert re.findall(r"@import|@font-face|<script|(?:href|src)=|url\((?!#)", text) == []
    assert "http" not in text.replace("http://www.w3.org/2000/svg", "")


def test_the_picture_of_the_demo_shows_its_four_agents_and_the_crash() -> None:
    svg = ElementTree.parse(DOCS / "images" / "demo.svg").getroot()
    text = "\n".join(svg.itertext()).replace("\N{NO-BREAK SPACE}", " ")

    agents = ("main", "researcher t_01", "remediator t_02", "writer t_03")
    assert [words for words in (*agents, "working", "kill -9", "interrupted", "completed") if words not in text] == []
    assert "none was made again" in text


def test_the_map_of_the_architecture_has_every_package_of_the_source() -> None:
    prose = read(DOCS / "explanation" / "architecture.md").prose
    rows = re.findall(r"^\| `([a-z_/]+)` \|", prose.partition("## The map")[2].partition("## ")[0], re.MULTILINE)
    source = ROOT / "src" / "retinue"

    packages = {path.parent.relative_to(source).as_posix() for path in source.glob("*/__init__.py")}
    assert len(rows) == len(set(rows))
    assert {row for row in rows if "/" not in row} == packages
    assert [row for row in rows if not (source / row / "__init__.py").is_file()] == []


@on_every_page
def test_every_block_has_a_tested_language_or_is_marked_as_text(page: Page) -> None:
    found = page.blocks[1:] if page is README else page.blocks
    allowed = LANGUAGES | GENERATED_LANGUAGES if page.path in GENERATED else LANGUAGES

    assert [(block.line, block.language) for block in found if block.language not in allowed] == []


@on_every_page
def test_every_flag_of_a_command_that_is_mentioned_exists(page: Page) -> None:
    code = [*INLINE_CODE.findall(page.prose), *(line for block in page.of("text") for line in block.code.splitlines())]
    commands = [shlex.split(found[1]) for line in code if (found := COMMAND.search(line))]

    assert [words for words in commands if not set(flags_in(words)) <= flags_of(words)] == []


@cache
def command_line() -> object:
    return typer.main.get_command(app)


def flags_in(words: list[str]) -> list[str]:
    """The flags of the command itself; those of a command behind two hyphens are its own."""
    own = words[: words.index("--")] if "--" in words else words
    return [word.partition("=")[0] for word in own if word.startswith("-") and word != "-"]


def flags_of(words: list[str]) -> set[str]:
    """The flags of the command in these words."""
    command: Any = command_line()
    for word in words[1:]:
        command = getattr(command, "commands", {}).get(word, command)
    return {"--help", *(flag for parameter in command.params for flag in parameter.opts)}


def test_every_setting_is_explained() -> None:
    prose = read(DOCS / "how-to" / "settings.md").prose
    keys = [key for section in SECTIONS for key in keys_of(inspect.type_info(section.type))]

    assert [key for key in keys if f"| `{key}` |" not in prose] == []


def keys_of(declared: inspect.Type, above: str = "") -> Iterator[str]:
    assert isinstance(declared, inspect.StructType)
    for field in declared.fields:
        inner = expected_type(field.type).type
        if isinstance(inner, inspect.StructType):
            yield from keys_of(inner, f"{above}{field.name}.")
        else:
            yield above + field.name


def test_every_wire_is_in_the_table_of_providers_with_address_and_key() -> None:
    rows = [line for line in read(DOCS / "how-to" / "providers.md").prose.splitlines() if line.startswith("| `")]

    missing = [
        name
        for name, wire in WIRES.items()
        if not any(all(f"`{fact}`" in row for fact in (name, wire.base_url, wire.api_key_env) if fact) for row in rows)
    ]
    assert missing == []


def test_every_provider_has_a_page_with_a_command_and_a_program_that_run() -> None:
    pages = [page for page in PAGES if page.path.parent.name == "providers"]

    def is_shown(name: str, page: Page) -> bool:
        commands = "\n".join(block.code for block in page.of("console"))
        is_run = f"--model {name}:" in commands or f"--provider {name} " in commands
        return is_run and any(f"{name}:" in block.code for block in page.of("python"))

    alike = {"openai-responses": "openai"}  # two names for one provider
    names = [alike.get(name, name) for name in WIRES if name not in (SCRIPTED, ACP)]
    assert [name for name in names if not any(is_shown(name, page) for page in pages)] == []


@on_every_page
def test_every_relative_link_leads_somewhere(page: Page) -> None:
    links = [link for link in LINK.findall(page.prose) if not re.match(r"[a-z]+:", link)]

    assert [link for link in links if not leads_somewhere(page, link)] == []


def leads_somewhere(page: Page, link: str) -> bool:
    place, _, anchor = link.partition("#")
    target = (page.path.parent / place).resolve() if place else page.path
    if not target.exists():
        return False
    return not anchor or (target.suffix == ".md" and anchor in read(target).anchors)


@on_every_page
def test_every_source_file_and_name_that_is_mentioned_exists(page: Page) -> None:
    mentioned = filter(None, map(SOURCE_FILE.fullmatch, INLINE_CODE.findall(page.prose)))
    written = {block.title for block in page.blocks}

    wrong = [found[0] for found in mentioned if found[1] not in written and not exists(found[1], found[2])]
    assert [name for name in wrong if PLACEHOLDER not in name] == []


def exists(file: str, name: str | None) -> bool:
    found = next((folder / file for folder in SOURCES if (folder / file).is_file()), None)
    return found is not None and (name is None or name in names_in(found))


@cache
def names_in(file: Path) -> frozenset[str]:
    return frozenset(_names(ast.parse(file.read_text()).body, ""))


def _names(body: list[ast.stmt], inside: str) -> Iterator[str]:
    for statement in body:
        match statement:
            case ast.FunctionDef(name=name) | ast.AsyncFunctionDef(name=name):
                yield inside + name
            case ast.ClassDef(name=name):
                yield inside + name
                yield from _names(statement.body, f"{inside}{name}.")
            case ast.Assign(targets=[ast.Name(id=name)]) | ast.AnnAssign(target=ast.Name(id=name)):
                yield inside + name
            case _:
                pass


def test_every_decision_record_is_in_the_index_and_has_its_four_parts() -> None:
    folder = DOCS / "explanation" / "decisions"
    records = sorted(folder.glob("[0-9]*.md"))
    indexed = [link for link in LINK.findall(read(folder / "README.md").prose) if re.match(r"\d", link)]

    assert indexed == [record.name for record in records]
    engine = {"context", "decision", "consequences", "alternatives-looked-at"}
    assert [record.name for record in records if not engine <= read(record).anchors] == []


@on_every_page
def test_no_page_speaks_of_how_it_was_made(page: Page) -> None:
    # One value of the setting `responses_wire` has that name.
    lines = [line for line in page.prose.splitlines() if "`responses_wire`" not in line]

    # So has an option of requests.
    assert re.findall(r"\bseeds?\b(?!`)", "\n".join(lines), re.IGNORECASE) == []


@pytest.mark.skipif(shutil.which("git") is None, reason="git is not installed")
@pytest.mark.skipif(not (ROOT / ".git").exists(), reason="only a git checkout knows which files are its own")
def test_no_file_carries_traces_of_the_machine_it_was_written_on() -> None:
    listed = subprocess.run(
        # The checkout may belong to another user.
        ["git", "-c", f"safe.directory={ROOT}", "ls-files", "--cached", "--others", "--exclude-standard"],
        cwd=ROOT,
        check=True,
        capture_output=True,
        text=True,
    ).stdout.splitlines()
    texts = {name: text for name in listed if (text := text_of(ROOT / name)) is not None}

    assert "tests/docs/test_docs.py" in texts
    for name in texts:
        if "codex" in name or name in ("docs/how-to/tool-profiles.md", "tests/fuzz/targets/arguments.py"):
            texts[name] = re.sub("/root(?=/)", "", texts[name])  # here the path of an agent, and no folder
    found = {name for name, text in texts.items() if TRACE_OF_THE_WORKSHOP.search(text)}
    assert found == set()


def text_of(file: Path) -> str | None:
    """The text of a file; None for other content, a link to a folder, or a file that was just deleted."""
    try:
        return file.read_text(encoding="utf-8")
    except (UnicodeDecodeError, IsADirectoryError, FileNotFoundError):
        return None
