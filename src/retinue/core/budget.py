"""Budget arithmetic: amounts used, caps on them, time windows, and fast vector sums over all dimensions."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final, Literal, TypeAlias

from msgspec import Struct

from retinue.core.usage import Usage

Dimension = Literal["input", "output", "tokens", "cost", "turns", "calls"]
Price: TypeAlias = tuple[int, int]
"""Nanodollars for one token of input and one of output."""

DIMENSIONS: Final[tuple[Dimension, ...]] = ("input", "output", "tokens", "cost", "turns", "calls")
OUTPUT, TOKENS, COST, CALLS = 1, 2, 3, 5
Numbers: TypeAlias = Sequence[int]
"""One number for each of DIMENSIONS, in that order."""
NOTHING: Final = (0, 0, 0, 0, 0, 0)


class Amount(Struct, frozen=True, gc=False, omit_defaults=True):
    """Resources used: tokens, nanodollars, model turns and tool calls.

    >>> Amount.of(Usage(input=10, output=2), cost=None)
    Amount(input=10, output=2, cost=0, turns=1, calls=0)
    """

    input: int = 0
    output: int = 0
    cost: int = 0
    turns: int = 0
    calls: int = 0

    @classmethod
    def of(cls, usage: Usage, cost: int | None, *, turns: int = 1, calls: int = 0) -> Amount:
        """The amount of one model turn; an unknown cost counts as 0."""
        return cls(usage.input, usage.output, cost or 0, turns, calls)

    @property
    def tokens(self) -> int:
        return self.input + self.output


class LeastInput(Struct, frozen=True, gc=False):
    """What the input of a call takes at least, in tokens and in nanodollars; a hold's worst case may be higher."""

    tokens: int
    cost: int


class Caps(Struct, frozen=True, gc=False, omit_defaults=True, repr_omit_defaults=True):
    """A limit for each dimension; None is unlimited."""

    input: int | None = None
    output: int | None = None
    tokens: int | None = None
    cost: int | None = None
    turns: int | None = None
    calls: int | None = None


UNLIMITED: Final = Caps()


class Window(Struct, frozen=True, omit_defaults=True):
    """A sliding-window limit: only charges younger than `span_seconds` count.

    Accounts with the same window name and span share its charges, each under its own caps. A `soft` window is checked
    only for being used up: the last call may exceed it, and no other call begins while that call is in flight.
    """

    name: str
    span_seconds: float
    caps: Caps
    soft: bool = False

    @property
    def limits_calls(self) -> bool:
        return self.caps.calls is not None

    @property
    def limits_replies(self) -> bool:
        """Whether the window limits what model replies use."""
        caps = self.caps
        return any(cap is not None for cap in (caps.input, caps.output, caps.tokens, caps.cost, caps.turns))


def add(numbers: list[int], change: Numbers) -> None:
    # Unrolled: this runs a dozen times a turn, and a loop takes more than 1.5 times as long.
    input, output, tokens, cost, turns, calls = change
    numbers[0] += input
    numbers[1] += output
    numbers[2] += tokens
    numbers[3] += cost
    numbers[4] += turns
    numbers[5] += calls


def negative(numbers: Numbers) -> Numbers:
    input, output, tokens, cost, turns, calls = numbers
    return (-input, -output, -tokens, -cost, -turns, -calls)


def vector(amount: Amount) -> Numbers:
    return (amount.input, amount.output, amount.input + amount.output, amount.cost, amount.turns, amount.calls)


def added(one: Amount, other: Amount) -> Amount:
    """The sum of two amounts.

    >>> added(Amount(input=10, cost=3), Amount(input=1, output=2))
    Amount(input=11, output=2, cost=3, turns=0, calls=0)
    """
    numbers = list(vector(one))
    add(numbers, vector(other))
    return amount_of(numbers)


def amount_of(numbers: Numbers) -> Amount:
    return Amount(numbers[0], numbers[1], numbers[3], numbers[4], numbers[5])


def numbers_of(caps: Caps | None) -> dict[int, int]:
    """The limited dimensions of `caps`, by index."""
    if caps is None:
        return {}
    limits = (caps.input, caps.output, caps.tokens, caps.cost, caps.turns, caps.calls)
    return {d: number for d, number in enumerate(limits) if number is not None}


def caps_of(numbers: dict[int, int]) -> Caps:
    return Caps(*(numbers.get(d) for d in range(len(DIMENSIONS))))
