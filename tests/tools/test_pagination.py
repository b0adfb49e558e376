"""Pages of long results: each is readable by itself, and together they are complete."""

from __future__ import annotations

import asyncio
import re
from pathlib import Path
from typing import Any

import msgspec
import pytest

import retinue
from retinue.core.ports import Request
from retinue.providers.scripted import Line, Script, ScriptedProvider, calls, says

LINES = [f'{number} "quoted"\\ \t{"x" * (number % 97)}' for number in range(1500)]
NAMES = [f"{number:04}{'n' * 200}" for number in range(600)]


class Reader:
    """A model that requests one page after the other while there are more."""

    def __init__(self, tool: str, **arguments: Any) -> None:
        self.tool = tool
        self.arguments = arguments
        self.pages: list[str] = []
        self.results: list[str] = []

    def __call__(self, request: Request) -> Line:
        self.pages.append(request.messages[-1].text)
        has_more = self.reads(self.pages[-1])
        return calls(self.tool, **self.arguments, offset=len(self.results)) if has_more else says("all of it")

    def reads(self, text: str) -> bool:
        page = msgspec.json.decode(text, type=dict[str, Any])
        assert (page["offset"], page["returned"]) == (len(self.results), len(page["results"]))
        assert page.get("content", "\n".join(page["results"])) == "\n".join(page["results"])
        self.results += page["results"]
        return page["has_more"]

    def at_work(self) -> None:
        script = Script().play("main", calls(self.tool, **self.arguments), *[self] * 40)

        async def work() -> None:
            model = ScriptedProvider(script)
            async with retinue.open(provider=model, tools=[self.tool], home=retinue.MEMORY, dialects=()) as r:
                assert (await r.run("read it all")).text == "all of it"

        asyncio.run(work())


class ReaderOfLines(Reader):
    """The same for a tool with plain lines as results."""

    def reads(self, text: str) -> bool:
        *lines, last = text.split("\n")
        more = re.fullmatch(r"\[.*; go on with offset=(\d+)\]", last)
        self.results += lines if more else [*lines, last]
        assert more is None or int(more[1]) == len(self.results)
        return more is not None


@pytest.fixture
def workspace(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    (tmp_path / "long").write_text("\n".join(LINES) + "\n")
    (tmp_path / "many").mkdir()
    for name in NAMES:
        (tmp_path / "many" / name).touch()
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.mark.usefixtures("workspace")
@pytest.mark.parametrize(
    ("reader", "whole"),
    [
        (Reader("bash_read", filepath="long"), LINES),
        (Reader("bash_ripgrep", pattern="quoted", limit=0), [f"long:{n}:{line}" for n, line in enumerate(LINES, 1)]),
        (Reader("bash_find", path="many", limit=0), [f"many/{name}" for name in NAMES]),
        (ReaderOfLines("grep", pattern="quoted", limit=0), [f"long:{n}:{line}" for n, line in enumerate(LINES, 1)]),
        (ReaderOfLines("file_ops", operation="list", path="many"), NAMES),
    ],
    ids=lambda each: each.tool if isinstance(each, Reader) else "",
)
def test_a_long_result_comes_in_pages_that_are_whole_and_lose_nothing(reader: Reader, whole: list[str]) -> None:
    reader.at_work()

    assert reader.results == whole
    assert 1 < len(reader.pages) < 20
    assert max(map(len, reader.pages)) <= 50_000


def test_a_memory_that_is_longer_than_a_page_can_be_read_to_its_end() -> None:
    content = " ".join(f"fact {number}" for number in range(9000))
    read: list[str] = []

    def reads_on(request: Request) -> Line:
        read.append(request.messages[-1].text)
        more = re.search(r"Read on with artifact_read (\{.*\})\.\]$", read[-1])
        assert more is not None
        return calls("artifact_read", **msgspec.json.decode(more[1]))

    def ends(request: Request) -> Line:
        read.append(request.messages[-1].text)
        return says("all of it")

    script = Script().play(
        "main", calls("memory_store", key="facts", content=content), calls("memory_recall"), reads_on, ends
    )

    async def work() -> None:
        model = ScriptedProvider(script)
        names = ["memory_store", "memory_recall", "artifact_read"]
        async with retinue.open(provider=model, tools=names, home=retinue.MEMORY, dialects=()) as r:
            assert (await r.run("remember")).text == "all of it"

    asyncio.run(work())
    assert read[0].partition("\n[Cut: ")[0] + read[1] == f"Found 1 memories:\n- [core] facts: {content}"
