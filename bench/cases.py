"""What is measured: each case is some work, and the numbers that are read off its cost."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from statistics import median

from msgspec import Struct

from bench.processes import FLOOR, MEMORY, SIDES, SQLITE, SQLITE_ONCE, Side
from bench.wires import WireCost
from bench.work import Cost, Work

Costs = Mapping[str, Sequence[Cost]]
"""By the name of the side, one for each time it did the work."""


class Case(Struct, frozen=True, kw_only=True):
    """Some work, how often a side does it in one process, and how often everyone gets their turn."""

    name: str
    work: Work
    rounds: int = 1
    warm_ups: int = 1
    times: int = 5
    quick_times: int = 2
    sides: tuple[Side, ...] = SIDES


ONE = Case(
    name="one worker",
    work=Work(workers=1),
    rounds=200,
    warm_ups=20,
    times=9,
    quick_times=2,
    sides=(*SIDES, SQLITE_ONCE),
)
HUNDRED = Case(
    name="a hundred workers", work=Work(workers=100), rounds=5, times=7, quick_times=1, sides=(*SIDES, SQLITE_ONCE)
)
HUNDRED_SLOW = Case(
    name="a hundred workers, 200 ms a reply", work=Work(workers=100, latency_ms=200), rounds=2, times=5, quick_times=1
)
THOUSAND_SLOW = Case(
    name="a thousand workers, 200 ms a reply", work=Work(workers=1000, latency_ms=200), times=5, quick_times=1
)
STREAM = Case(
    name="fifty streams of 200 tokens, 5 ms apart",
    work=Work(workers=50, turns=0, tokens=200, gap_ms=5),
    times=3,
    quick_times=1,
)
CASES = (ONE, HUNDRED, HUNDRED_SLOW, THOUSAND_SLOW, STREAM)

WAITING = Work(workers=1000, turns=0, tokens=20, latency_ms=2000)
TEN_THOUSAND = Case(
    name="ten thousand workers, 200 ms a reply", work=Work(workers=10_000, latency_ms=200), times=1, quick_times=1
)


class Row(Struct, frozen=True, kw_only=True):
    """One line of the report: a number for each side, how it compares, and how much it may be."""

    what: str
    unit: str
    values: dict[str, float]
    ratios: dict[str, float] = {}
    """To the floor, each the median of what was found side by side."""
    most: dict[str, float] = {}
    """By side: the highest ratio, or with `absolute` the highest value, that was promised."""
    absolute: bool = False

    def keeps(self, side: str) -> bool | None:
        """Whether a side keeps its promise; None if there is none."""
        if side not in self.most:
            return None
        found = self.values if self.absolute else self.ratios
        return found[side] <= self.most[side]


def compared(what: str, unit: str, costs: Costs, read: Callable[[Cost], float], most: Mapping[str, float]) -> Row:
    """A row of medians, with ratios between neighbours: what was measured at nearly the same time."""
    found = {side: [read(cost) for cost in each] for side, each in costs.items()}
    ratios = {
        side: median(value / bare for value, bare in zip(values, found[FLOOR.name], strict=True))
        for side, values in found.items()
    }
    return Row(
        what=what,
        unit=unit,
        values={side: median(values) for side, values in found.items()},
        ratios=ratios,
        most=dict(most),
    )


def rows_of(costs: Mapping[str, Costs]) -> list[Row]:
    """What the cases' costs say, by the name of the case."""
    memory, sqlite = MEMORY.name, SQLITE.name
    rows = [
        compared("CPU per model turn, one worker", "ms", costs[ONE.name], _cpu_ms, {memory: 2.0, sqlite: 2.5}),
        compared("CPU per model turn, 100 workers", "ms", costs[HUNDRED.name], _cpu_ms, {sqlite: 1.5}),
        compared(
            "1,000 workers, 200 ms a reply: wall time",
            "s",
            costs[THOUSAND_SLOW.name],
            lambda cost: cost.wall,
            {memory: 1.5, sqlite: 2.2},
        ),
        compared("1,000 workers, 200 ms a reply: CPU per turn", "ms", costs[THOUSAND_SLOW.name], _cpu_ms, {}),
        _growth(costs[HUNDRED_SLOW.name], costs[THOUSAND_SLOW.name]),
        compared("CPU per streamed event, 5 ms apart", "µs", costs[STREAM.name], _cpu_us_per_event, {}),
    ]
    if TEN_THOUSAND.name in costs:
        most = costs[TEN_THOUSAND.name]
        rows += [
            compared("10,000 workers, 200 ms a reply: wall time", "s", most, lambda cost: cost.wall, {}),
            compared("10,000 workers: CPU per turn", "ms", most, _cpu_ms, {}),
            compared("10,000 workers: peak memory", "MB", most, lambda cost: cost.peak_kb / 1024, {}),
        ]
    return rows


def _cpu_ms(cost: Cost) -> float:
    return cost.cpu_per_turn * 1000


def _cpu_us_per_event(cost: Cost) -> float:
    return cost.cpu / ((STREAM.work.workers + 1) * STREAM.work.tokens) * 1e6


def _growth(few: Costs, many: Costs) -> Row:
    """How much dearer a turn is among a thousand workers than among a hundred."""
    values = {
        side: median(cost.cpu_per_turn for cost in many[side]) / median(cost.cpu_per_turn for cost in few[side])
        for side in few
    }
    return Row(
        what="CPU per turn with 1,000 workers, as a multiple of that with 100",
        unit="x",
        values=values,
        most={MEMORY.name: 1.1, SQLITE.name: 1.1},
        absolute=True,
    )


IMPORTS = {
    FLOOR.name: "asyncio, aiohttp, msgspec",
    MEMORY.name: "retinue",
    SQLITE.name: "retinue.app.open, retinue.providers.openai_chat.provider, retinue.store.sqlite.store",
}
"""What is loaded before the work can begin; in the column of SQLite everything that a run with a store needs."""


def wire_rows(costs: Mapping[str, WireCost]) -> list[Row]:
    """What each wire takes for an event of a stream, next to a bare typed decoder."""
    over_http = [
        Row(
            what=f"CPU per event of a fast stream, {wire}",
            unit="µs",
            values={FLOOR.name: cost.bare, MEMORY.name: cost.retinue},
            ratios={FLOOR.name: 1.0, MEMORY.name: cost.ratio},
            most={MEMORY.name: 1.5},
        )
        for wire, cost in costs.items()
    ]
    in_memory = Row(
        what="CPU per event that comes alone and without HTTP, as a multiple of a bare decoder's, the dearest wire",
        unit="x",
        values={MEMORY.name: max(cost.in_memory for cost in costs.values())},
        most={MEMORY.name: 1.5},
        absolute=True,
    )
    return [*over_http, in_memory]


def import_row(seconds: Mapping[str, Sequence[float]]) -> Row:
    """What loading takes."""
    return Row(
        what="CPU of importing (floor: aiohttp and msgspec; `import retinue`; all that a run needs)",
        unit="ms",
        values={side: median(values) * 1000 for side, values in seconds.items()},
        most={MEMORY.name: 120.0},
        absolute=True,
    )


def sandbox_rows(seconds: float | None) -> list[Row]:
    """What the sandbox adds to the start of a program, if there is one."""
    if seconds is None:
        return []
    return [
        Row(
            what="start of a program in the sandbox, more than a bare start",
            unit="ms",
            values={MEMORY.name: seconds * 1000},
            most={MEMORY.name: 25.0},
            absolute=True,
        )
    ]


def waiting_row(kilobytes: Mapping[str, Sequence[float]]) -> Row:
    """What waiting workers weigh."""
    return Row(
        what="memory per waiting worker",
        unit="KB",
        values={side: median(values) for side, values in kilobytes.items()},
        most={MEMORY.name: 40.0, SQLITE.name: 40.0},
        absolute=True,
    )
