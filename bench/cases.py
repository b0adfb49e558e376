"""The benchmark cases: workloads, the rows computed from their costs, and the promised limits."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from statistics import median

from msgspec import Struct

from bench.processes import FLOOR, MEMORY, SIDES, SQLITE, SQLITE_ONCE, Side
from bench.wires import WireCost
from bench.work import Cost, Work

Costs = Mapping[str, Sequence[Cost]]
"""The measurements of each side, by its name."""


class Case(Struct, frozen=True, kw_only=True):
    """A workload, its rounds per process, and the number of measurements per side."""

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
    name="ten thousand workers, 200 ms a reply",
    work=Work(workers=1000, latency_ms=200, leads=10),
    times=1,
    quick_times=1,
)


class Row(Struct, frozen=True, kw_only=True):
    """One line of the report: a value for each side, its ratio to the floor, and the promised limit."""

    what: str
    unit: str
    values: dict[str, float]
    ratios: dict[str, float] = {}
    """Ratios to the floor or another side, each the median over adjacent measurements."""
    most: dict[str, float] = {}
    """By side: the promised limit of the ratio, or with `absolute` of the value."""
    absolute: bool = False

    def keeps(self, side: str) -> bool | None:
        """Whether a side is within its limit; None if it has none."""
        if side not in self.most:
            return None
        measured = self.values if self.absolute else self.ratios
        return measured[side] <= self.most[side]


def compare(
    what: str,
    unit: str,
    costs: Costs,
    read: Callable[[Cost], float],
    most: Mapping[str, float],
    *,
    base: str = FLOOR.name,
) -> Row:
    """A row of medians, with ratios to a side between measurements that were made at nearly the same time."""
    values = {side: [read(cost) for cost in measured] for side, measured in costs.items()}
    ratios = {
        side: median(value / bare for value, bare in zip(own, values[base], strict=True))
        for side, own in values.items()
    }
    return Row(
        what=what,
        unit=unit,
        values={side: median(own) for side, own in values.items()},
        ratios=ratios,
        most=dict(most),
    )


def rows_of(costs: Mapping[str, Costs]) -> list[Row]:
    """The rows for the costs of the cases, by the name of the case."""
    memory, sqlite = MEMORY.name, SQLITE.name
    rows = [
        compare("CPU per model turn, one worker", "ms", costs[ONE.name], _cpu_ms, {memory: 2.0, sqlite: 1.9}),
        compare("CPU per model turn, 100 workers", "ms", costs[HUNDRED.name], _cpu_ms, {sqlite: 1.5}),
        compare(
            "1,000 workers, 200 ms a reply: wall time",
            "s",
            costs[THOUSAND_SLOW.name],
            lambda cost: cost.wall,
            {memory: 1.5, sqlite: 2.2},
        ),
        compare("1,000 workers, 200 ms a reply: CPU per turn", "ms", costs[THOUSAND_SLOW.name], _cpu_ms, {}),
        _growth(costs[HUNDRED_SLOW.name], costs[THOUSAND_SLOW.name]),
        compare("CPU per streamed event, 5 ms apart", "µs", costs[STREAM.name], _cpu_us_per_event, {}),
    ]
    if TEN_THOUSAND.name in costs:
        largest = costs[TEN_THOUSAND.name]
        rows += [
            compare("10,000 workers, 200 ms a reply: wall time", "s", largest, lambda cost: cost.wall, {sqlite: 1.3}),
            compare("10,000 workers: CPU per turn", "ms", largest, _cpu_ms, {}),
            compare("10,000 workers: peak memory", "MB", largest, lambda cost: cost.peak_kb / 1024, {}),
        ]
    return rows


def _cpu_ms(cost: Cost) -> float:
    return cost.cpu_per_turn * 1000


def _cpu_us_per_event(cost: Cost) -> float:
    return cost.cpu / ((STREAM.work.workers + 1) * STREAM.work.tokens) * 1e6


def _growth(few: Costs, many: Costs) -> Row:
    """The cost of a turn among a thousand workers relative to one among a hundred."""
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
    SQLITE.name: "retinue.app.open, retinue.providers.openai_chat.response, retinue.store.sqlite.store",
}
"""What is imported before the work begins; in the column of SQLite everything that a run with a store needs."""


def wire_rows(costs: Mapping[str, WireCost]) -> list[Row]:
    """The cost of a streamed event by wire, next to a bare typed decoder."""
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
    """The cost of imports."""
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


def handshake_rows(seconds: Mapping[str, float]) -> list[Row]:
    """How long an MCP host waits for the tools of `retinue mcp`, by kind of client."""
    return [
        Row(
            what=f"start of retinue mcp until its tools are listed, {kind}",
            unit="ms",
            values={MEMORY.name: taken * 1000},
            most={MEMORY.name: 1000.0},
            absolute=True,
        )
        for kind, taken in seconds.items()
    ]


def waiting_row(kilobytes: Mapping[str, Sequence[float]]) -> Row:
    """The memory of waiting workers."""
    return Row(
        what="memory per waiting worker",
        unit="KB",
        values={side: median(values) for side, values in kilobytes.items()},
        most={MEMORY.name: 32.0, SQLITE.name: 32.0},
        absolute=True,
    )
