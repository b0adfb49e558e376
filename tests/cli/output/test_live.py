"""Progress: the live tree at different sizes, plain lines, and the rows of a tree watch."""

from __future__ import annotations

import asyncio
import io
from collections.abc import Sequence
from functools import partial

import pytest
from msgspec.structs import replace
from rich.console import Console

import retinue
from retinue.app.follow import TreeWatch, polled
from retinue.cli.output import live
from retinue.cli.output.live import LiveTree, draw, outline
from retinue.cli.output.progress import PlainLines, summary
from retinue.cli.output.turn_screen import FrameCost
from retinue.core.agent import Agent
from retinue.core.messages import AssistantMessage, Reply
from retinue.core.ports import Publish, Request
from retinue.core.run import HandleRef, Outcome, State
from retinue.core.usage import NANO, Usage
from retinue.engine import RunView
from retinue.engine.live_run import LiveRun
from retinue.providers.scripted import calls, says
from retinue.testing.harness import Harness


def view(
    run_id: str,
    *,
    parent: str | None = None,
    agent: str = "dig",
    handle: str | None = None,
    state: State = "working",
    outcome: Outcome | None = None,
    turns: int = 0,
    cost: int | None = 0,
    started_at: float = 100.0,
    ended_at: float | None = None,
    label: str = "",
) -> RunView:
    return RunView(
        run_id=run_id,
        session_id="s",
        root_id="root0001",
        parent_id=parent,
        depth=0 if parent is None else 1,
        path="root",
        agent=agent,
        label=label,
        dialect="spec",
        handle=HandleRef("spec", handle) if handle else None,
        state="ended" if outcome else state,
        outcome=outcome,
        turns=turns,
        usage=Usage(input=1500 * turns, output=10 * turns),
        cost=cost,
        started_at=started_at,
        ended_at=ended_at,
    )


DONE = Outcome(result="completed", reason="answered", text="ok")
ROOT = view("root0001", agent="main", state="waiting", turns=2, cost=NANO // 1000)
CHILD = view("child001", parent="root0001", handle="t_01", turns=1)
GRANDCHILD = view("child002", parent="child001", agent="helper")
OTHER = view("child003", parent="root0001", handle="t_02", outcome=DONE, turns=3, ended_at=104.0)
TREE = [ROOT, CHILD, GRANDCHILD, OTHER]


def drawn(rows: list[RunView], *, width: int, height: int = 20, ascii_only: bool = False) -> list[str]:
    screen = Console(file=io.StringIO(), width=width, color_system=None)
    screen.print(draw(rows, now=110.0, width=width, height=height, ascii_only=ascii_only))
    assert isinstance(screen.file, io.StringIO)
    return [line.rstrip() for line in screen.file.getvalue().splitlines()]


def test_a_tree_shows_runs_with_turns_tokens_cost_and_time() -> None:
    assert drawn(TREE, width=80) == [
        "main root0001    waiting  2 t  3.0k tok  $0.0010  10.0 s",
        "├─ dig t_01      working  1 t  1.5k tok       $0  10.0 s",
        "│  └─ helper     working  0 t     0 tok       $0  10.0 s",
        "└─ dig t_02    completed  3 t  4.5k tok       $0   4.0 s",
    ]


@pytest.mark.parametrize("width", [40, 50, 55, 56, 80, 200])
def test_a_tree_fits_into_any_width_from_forty_columns_up(width: int) -> None:
    long = view("child004", parent="root0001", agent="a-very-long-name-of-an-agent" * 3)

    lines = drawn([*TREE, long], width=width)

    assert len(lines) == 5
    assert max(map(len, lines)) <= width
    assert all("working" in line or "waiting" in line or "completed" in line for line in lines)


def test_a_tall_tree_keeps_root_and_unfinished_runs_and_counts_the_rest() -> None:
    over = [view(f"over{number:04d}", parent="root0001", outcome=DONE, ended_at=101.0) for number in range(50)]

    lines = drawn([ROOT, *over, CHILD], width=80, height=5)

    assert len(lines) == 5
    assert lines[0].startswith("main")
    assert any("t_01" in line for line in lines)
    assert lines[-1] == "and 48 more"


def test_the_reason_of_a_failure_is_wrapped_and_not_cut() -> None:
    dead = Outcome(result="failed", reason="model_error", text="", error="the model is gone, and will not come back")
    gone = view("child005", parent="root0001", outcome=dead, ended_at=101.0)
    screen = Console(file=io.StringIO(), width=60, color_system=None)
    screen.print(draw([ROOT, gone, CHILD], now=110.0, width=60, height=None, detailed=True))
    assert isinstance(screen.file, io.StringIO)

    assert [line.rstrip() for line in screen.file.getvalue().splitlines()][2:4] == [
        "│  ! failed (model_error): the model is gone, and will not",
        "│  come back",
    ]


def test_without_unicode_a_tree_has_plain_lines() -> None:
    assert [line.split()[0] for line in drawn(TREE, width=80, ascii_only=True)] == ["main", "|-", "|", "`-"]


def test_a_deep_tree_is_drawn() -> None:
    chain = [view("r0", agent="main")]
    chain += [view(f"r{depth}", parent=f"r{depth - 1}") for depth in range(1, 1200)]

    assert len(drawn(chain, width=80, height=3000)) == 1200


def test_a_live_tree_leaves_the_screen_as_it_found_it() -> None:
    screen = Console(file=io.StringIO(), width=60, height=10, force_terminal=True, color_system=None)
    with LiveTree(screen, now=lambda: 110.0) as live:
        live.show(TREE)
        live.show(TREE)
    assert isinstance(screen.file, io.StringIO)
    written = screen.file.getvalue()

    assert "\x1b[?25l" in written
    assert written.rindex("\x1b[?25h") > written.rindex("dig t_02")
    assert written.endswith("\x1b[1A\x1b[2K" * 4)


def test_plain_lines_print_each_event_once_in_order() -> None:
    lines: list[str] = []
    plain = PlainLines(write=lines.append)
    plain.show([ROOT], {"root0001": "secret task"})
    plain.show([ROOT], {})
    ended_root = view("root0001", agent="main", outcome=DONE, turns=3, ended_at=105.0)
    late = view("child003", parent="root0001", handle="t_02", outcome=DONE, turns=1, started_at=102.0, ended_at=104.0)
    plain.show([ended_root, late], {})

    assert lines == [
        "main: started, run root0001",
        "main: turn 2, 3.0k tokens, $0.0010",
        "dig t_02: started, run child003",
        "dig t_02: turn 1, 1.5k tokens",
        "dig t_02: completed, 1 turn, 1.5k tokens, 2.0 s",
        "main: turn 3, 4.5k tokens",
        "main: completed, 3 turns, 4.5k tokens, 5.0 s",
    ]


def test_tasks_are_printed_only_with_verbose_and_without_control_codes() -> None:
    lines: list[str] = []
    PlainLines(write=lines.append, verbose=True).show(
        [view("r", agent="main", label="\x1b[31mred")], {"r": "look\nhere \x1b[2J"}
    )

    assert lines == ["main [␛[31mred]: started, run r: look here ␛[2J"]


def test_the_summary_counts_the_whole_tree() -> None:
    ended = view("root0001", agent="main", outcome=DONE, turns=2, ended_at=103.5, cost=None)

    assert summary([ended, OTHER]) == "completed, 2 runs, 5 turns, 7.5k tokens in, 50 out, cost unknown, 3.5 s"


def test_the_summary_says_what_no_server_counted() -> None:
    ended = view("root0001", agent="main", outcome=DONE, turns=2, ended_at=103.5, cost=None)
    ended = replace(ended, estimated=Usage(input=1_200, output=30), estimated_cost=2_500_000)

    assert summary([ended]).endswith(", 3.5 s; not counted by the server: about 1.2k tokens in, 30 out, $0.0025")


async def test_a_watch_sees_runs_that_started_and_ended_between_two_polls() -> None:
    agents = (Agent(name="dig", description="Digs.", system_prompt="You dig."),)
    async with Harness(agents=agents) as harness:
        harness.script(
            "main",
            calls("subagent", action="spawn", agent="dig", task="Look."),
            calls("subagent", action="status", task_id="t_01"),
            says("Done."),
        )
        harness.script("dig", says("I looked."))
        root = await harness.retinue.spawn("Go.")
        watch = TreeWatch(harness.retinue.supervisor, root.run_id)
        seen: list[list[str]] = []

        def show(rows: Sequence[RunView], tasks: object) -> None:
            seen.append([f"{row.agent} {row.state}" for row in rows])

        async with polled(watch, show):
            await root.wait()

        assert watch.tasks[root.run_id] == "Go."
        assert seen[-1] == ["main ended", "dig ended"]


def test_a_frame_of_a_large_tree_is_outlined_once_and_has_the_height_of_the_screen(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    outlined: list[int] = []

    def counted(rows: Sequence[RunView], *, ascii_only: bool) -> list[tuple[str, int]]:
        outlined.append(len(rows))
        return outline(rows, ascii_only=ascii_only)

    monkeypatch.setattr(live, "outline", counted)
    rows = [view("root0001"), *(view(f"child{number:04}", parent="root0001") for number in range(2000))]
    times = iter(range(100, 200))
    screen = Console(file=io.StringIO(), force_terminal=True, width=80, height=24)
    with LiveTree(screen, now=lambda: float(next(times))) as tree:
        for turns in range(5):
            tree.show([rows[0], view("child0000", parent="root0001", turns=turns), *rows[2:]])
        assert outlined == [2001]
        tree.show([*rows, view("late0001", parent="root0001")])
        assert outlined == [2001, 2002]

    drawn = draw(rows, now=100.0, width=80, height=23)
    assert len(screen.render_lines(drawn)) == 23


class Waiting:
    """A model that answers when it is allowed to."""

    def __init__(self) -> None:
        self.asked, self.allowed = asyncio.Event(), asyncio.Event()

    async def answer(self, request: Request, publish: Publish) -> Reply:
        self.asked.set()
        await self.allowed.wait()
        return Reply(AssistantMessage("Done."))


async def test_a_watch_makes_views_of_the_runs_that_changed(monkeypatch: pytest.MonkeyPatch) -> None:
    made: list[str] = []
    make = LiveRun.view

    def counted(self: LiveRun, *, ended_at: float | None = None) -> RunView:
        made.append(self.run_id)
        return make(self, ended_at=ended_at)

    model = Waiting()
    async with retinue.open(provider=model, dialects=(), home=retinue.MEMORY) as r:
        run = await r.spawn("Go.")
        await model.asked.wait()
        watch = TreeWatch(r.supervisor, run.run_id)
        monkeypatch.setattr(LiveRun, "view", counted)
        first, second = watch.look(), watch.look()
        assert (made, first == second, [row.state for row in first]) == ([run.run_id], True, ["working"])
        model.allowed.set()
        await run.wait()
        assert [row.state for row in watch.look()] == ["ended"]


def test_frames_that_cost_much_are_drawn_within_a_share_of_the_cpu_time_and_once_a_second(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    clock = {"monotonic": 100.0, "thread_time": 0.0, "process_time": 1.0}
    for name in clock:
        monkeypatch.setattr(f"retinue.cli.output.turn_screen.time.{name}", partial(clock.__getitem__, name))
    cost = FrameCost()

    def draw(seconds: float) -> bool:
        due = cost.is_due()
        with cost.counted():
            clock["thread_time"] += seconds
        return due

    assert [draw(0.001) for _ in range(20)] == [True] * 20  # cheap ones always
    assert (draw(0.02), cost.is_due()) == (True, False)
    clock["monotonic"] += 1.0
    assert cost.is_due()
    draw(0.02)
    clock["process_time"] = 10.0
    assert cost.is_due()
