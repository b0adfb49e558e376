"""Long results are cut, stored whole, and read page by page by runs of the same tree."""

from collections.abc import Callable, Generator
from pathlib import Path

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

import retinue
from retinue.core.commands import Prune
from retinue.core.errors import ToolError
from retinue.core.policy import Autonomy, Policy, Risk
from retinue.core.ports import CallContext, CallRisk, Store, Tool, ToolResult
from retinue.providers.scripted import calls, says
from retinue.store.memory.store import MemoryStore
from retinue.store.sqlite.store import SqliteStore
from retinue.testing.harness import Harness
from retinue.tools import artifacts
from retinue.tools.artifacts import PIECE, TruncatingTool, artifact_id
from retinue.tools.dependencies import ToolDependencies
from retinue.tools.function import FunctionTool
from tests.tools.tool_calls import FixedClock, HarnessKeyValue, NoSandbox, StoreKeyValue, context, error_of, result_of

ID = artifact_id("run/1/0")


@pytest.fixture
def store(tmp_path: Path) -> Generator[Store]:
    store = SqliteStore(tmp_path / "retinue.db", threaded=False)
    yield store
    store.close()


def answering(result: ToolResult | Callable[[], ToolResult]) -> Tool:
    """A tool with one result."""

    async def ask() -> ToolResult:
        return result() if callable(result) else result

    return FunctionTool(ask, kind="pure")


def says_text(text: str, *, failed: bool = False) -> Tool:
    return answering(ToolResult(text, failed))


async def no_origins(root_id: str) -> tuple[str, ...]:
    return ()


def reader(store: Store) -> Tool:
    dependencies = ToolDependencies(sandbox=NoSandbox(), key_value=StoreKeyValue(store), clock=FixedClock())
    (tool,) = artifacts.tools(dependencies)
    return tool


# ---- what passes, and where it is cut --------------------------------------------------------------------------------


@pytest.mark.parametrize("text", ["", "short", "x" * 50])
@pytest.mark.parametrize("failed", [True, False])
async def test_a_result_up_to_the_limit_passes_untouched(store: Store, text: str, failed: bool) -> None:
    tool = TruncatingTool(says_text(text, failed=failed), StoreKeyValue(store), limit=50)

    assert await tool.call("{}", context()) == ToolResult(text, failed)
    assert store.key_value(f"artifact/run/{ID}") == {}


@pytest.mark.parametrize("failed", [True, False])
async def test_a_long_result_is_cut_with_a_notice_how_to_read_on(store: Store, failed: bool) -> None:
    tool = TruncatingTool(says_text("x" * 51, failed=failed), StoreKeyValue(store), limit=50)

    assert await tool.call("{}", context()) == ToolResult(
        "x" * 50
        + f'\n[Cut: 50 of 51 characters are shown. Read on with artifact_read {{"id": "{ID}", "offset": 50}}.]',
        failed,
    )


async def test_a_cut_falls_between_lines_where_one_ends_near(store: Store) -> None:
    lines = "".join(f"line {number:03}\n" for number in range(100))
    tool = TruncatingTool(says_text(lines), StoreKeyValue(store), limit=95)

    assert (await result_of(tool)).startswith(lines[:90] + "\n[Cut: 90 of 900 characters are shown.")


async def test_without_artifact_read_the_notice_asks_for_less_and_nothing_is_stored(store: Store) -> None:
    tool = TruncatingTool(says_text("x" * 51), StoreKeyValue(store), limit=50)

    shown = await result_of(tool, context(offered=("ask",)))
    assert shown == "x" * 50 + "\n[Cut: 50 of 51 characters are shown. Ask for less.]"
    assert store.key_value(f"artifact/run/{ID}") == {}


@pytest.mark.parametrize("policy", [Policy(allowed_tools=("ask",)), Policy(excluded_tools=("artifact_read",))])
async def test_with_artifact_read_refused_by_policy_the_notice_asks_for_less(store: Store, policy: Policy) -> None:
    tool = TruncatingTool(says_text("x" * 51), StoreKeyValue(store), limit=50)

    assert (
        await result_of(tool, context(policy=policy))
        == "x" * 50 + "\n[Cut: 50 of 51 characters are shown. Ask for less.]"
    )
    readonly = Policy(autonomy=Autonomy.READONLY, allowed_tools=("ask", "artifact_read"))
    assert f'"id": "{ID}"' in await result_of(tool, context(policy=readonly))


async def test_a_failure_that_is_raised_is_cut_as_well(store: Store) -> None:
    def fail(text: str) -> Callable[[], ToolResult]:
        def raises() -> ToolResult:
            raise ToolError(text)

        return raises

    short = TruncatingTool(answering(fail("no such ticket")), StoreKeyValue(store), limit=50)
    long = TruncatingTool(answering(fail("no" * 26)), StoreKeyValue(store), limit=50)

    with pytest.raises(ToolError, match=r"^no such ticket$"):
        await short.call("{}", context())
    assert (await error_of(long)).startswith("no" * 25 + "\n[Cut: 50 of 52 characters are shown.")


async def test_text_beyond_the_storage_limit_is_reported_as_lost(store: Store) -> None:
    tool = TruncatingTool(says_text("x" * 200), StoreKeyValue(store), limit=50, max_kept=120)

    assert await result_of(tool) == (
        "x" * 50 + "\n[Cut: 50 of 200 characters are shown. Only the first 120 were kept. "
        f'Read on with artifact_read {{"id": "{ID}", "offset": 50}}.]'
    )
    assert await result_of(reader(store), id=ID, offset=50, limit=60) == (
        "x" * 60 + "\n[110 of 120 characters read. Read on with offset 110.]"
    )
    assert await result_of(reader(store), id=ID, offset=110) == (
        "x" * 10 + "\n[The end of what was kept: 120 of 200 characters. The rest is lost.]"
    )


async def test_the_wrapped_tool_shows_through(store: Store) -> None:
    def heavy(arguments: str) -> CallRisk:
        return CallRisk(Risk.HIGH if "rm" in arguments else Risk.LOW, acts=True)

    @retinue.tool(kind="once", risk="medium", timeout=7.0, assess=heavy)
    def shell(command: str) -> str:
        """Run a command."""
        return command

    tool: Tool = TruncatingTool(shell, StoreKeyValue(store), limit=50)

    assert tool.spec is shell.spec
    assert (tool.kind, tool.risk, tool.timeout) == ("once", Risk.MEDIUM, 7.0)
    assert (tool.waits, tool.stoppable) == (False, False)
    assert [tool.prepare(words).risk for words in ("rm x", "ls")] == [
        CallRisk(Risk.HIGH, True),
        CallRisk(Risk.LOW, True),
    ]
    plain = TruncatingTool(says_text("x"), StoreKeyValue(store))
    assert plain.prepare("{}").risk == CallRisk(Risk.LOW)


# ---- reading on ------------------------------------------------------------------------------------------------------


async def read_to_the_end(tool: Tool, start: str, where: CallContext, limit: int) -> str:
    """All pages after the cut result, joined."""
    text, offset = start, len(start)
    while True:
        page = await result_of(tool, where, id=ID, offset=offset, limit=limit)
        body, _, notice = page.rpartition("\n[")
        if not notice.endswith(f"Read on with offset {offset + len(body)}.]"):
            return text + page
        text, offset = text + body, offset + len(body)


async def test_the_whole_text_is_read_across_pieces(store: Store) -> None:
    text = "".join(f"{number} naïve ☃ 🙂\n" for number in range(60_000))
    assert len(text) > 2 * PIECE
    tool = TruncatingTool(says_text(text), StoreKeyValue(store))
    shown = (await result_of(tool)).rpartition("\n[")[0]

    assert await read_to_the_end(reader(store), shown, context(), 50_000) == text


@given(text=st.text(min_size=6, max_size=300), limit=st.integers(1, 5), page=st.integers(1, 60))
async def test_pages_put_together_are_the_text(text: str, limit: int, page: int) -> None:
    store = MemoryStore()
    tool = TruncatingTool(says_text(text), StoreKeyValue(store), limit=limit)
    shown = (await result_of(tool)).rpartition("\n[Cut: ")[0]

    assert text.startswith(shown)
    assert 0 < len(shown) <= limit
    assert (await read_to_the_end(reader(store), shown, context(), page)) == text


async def test_an_artifact_belongs_to_its_tree(store: Store) -> None:
    tool = TruncatingTool(says_text("x" * 60), StoreKeyValue(store), limit=50)
    await result_of(tool)
    read = reader(store)

    assert await result_of(read, context("child/1/0", run_id="child", depth=1), id=ID, offset=50) == "x" * 10
    missing = f"There is no artifact {ID!r}. Artifacts belong to the tree of runs that made them."
    assert await error_of(read, context(run_id="other", root_id="other"), id=ID) == missing


@pytest.mark.parametrize("name", ["a_0000000000000000", "../../context/session", "", "a/0", f"{ID}/0", "\0"])
async def test_an_unknown_artifact_name_is_an_error(store: Store, name: str) -> None:
    await result_of(TruncatingTool(says_text("x" * 60), StoreKeyValue(store), limit=50))

    assert await error_of(reader(store), id=name) == (
        f"There is no artifact {name!r}. Artifacts belong to the tree of runs that made them."
    )


async def test_pages_that_do_not_exist_are_errors(store: Store) -> None:
    await result_of(TruncatingTool(says_text("x" * 60), StoreKeyValue(store), limit=50))
    read = reader(store)

    assert await error_of(read, id=ID, offset=60) == f"Offset 60 is past the end: artifact {ID} has 60 characters."
    for wrong in ({"offset": -1}, {"limit": 0}, {"limit": 50_001}, {"offset": "x"}):
        assert next(iter(wrong)) in await error_of(read, id=ID, **wrong)


async def test_a_call_that_is_made_again_has_the_same_artifact(store: Store) -> None:
    tool = TruncatingTool(says_text("x" * 60), StoreKeyValue(store), limit=50)

    assert await result_of(tool, context()) == await result_of(tool, context(again=True))
    assert artifact_id("run/1/0") != artifact_id("run/1/1")


async def test_an_artifact_that_became_shorter_ends_where_it_ends_now(store: Store) -> None:
    key_value = StoreKeyValue(store)
    await result_of(TruncatingTool(says_text("x" * (PIECE + 9)), key_value, limit=50))
    await result_of(TruncatingTool(says_text("y" * 60), key_value, limit=50))

    assert await result_of(reader(store), id=ID) == "y" * 60


# ---- in a run --------------------------------------------------------------------------------------------------------


async def test_a_model_reads_on_and_the_artifact_goes_with_its_tree(store: Store) -> None:
    key_value = HarnessKeyValue()
    log = "".join(f"line {number:03}\n" for number in range(100))
    tools = [TruncatingTool(says_text(log), key_value, limit=500), artifacts.reader(key_value, no_origins)]
    harness = key_value.harness = Harness(store=store, dialects=(), tools=tools)
    async with harness:
        harness.script(
            "main",
            calls("ask"),
            lambda ask: calls("artifact_read", **msgspec.json.decode(_call_in(ask.messages[-1].text))),
            says("done"),
        )
        await harness.run("go")
        run_id = harness.run_of("main")
        first, rest = harness.results("main")
        space = f"artifact/{run_id}/{artifact_id(f'{run_id}/1/0')}"

        assert (first.partition("\n[Cut")[0], rest) == (log[:495], log[495:])
        assert set(store.key_value(space)) == {"about"}
        store.commit(None, [Prune(before=1e12)])
        assert [dict(store.key_value(each)) for each in (space, f"{space}/0")] == [{}, {}]


def _call_in(notice: str) -> str:
    """The arguments that a notice proposes."""
    return notice[notice.rindex("artifact_read {") + len("artifact_read ") : notice.rindex("}") + 1]
