"""Token usage of model calls, and costs in whole nanodollars so that sums are exact."""

from __future__ import annotations

from msgspec import Struct

NANO = 1_000_000_000
"""Nanodollars in a dollar."""

MAX_TOKENS = 2**53
"""The largest number of tokens that is counted: stores have room for it, and readers of JSON keep it exact."""

MAX_COST = 2**62
"""The largest cost that is counted, in nanodollars: stores have room for it."""


class Usage(Struct, frozen=True, gc=False, omit_defaults=True, repr_omit_defaults=True):
    """Tokens of one model call or a sum of calls; `input` includes `cached`, `output` includes `reasoning`.

    `written` are input tokens newly written to the vendor's prompt cache, if it reports them, and `written_1h` those of
    them that it keeps for an hour. A sum stays within `MAX_TOKENS`.

    >>> Usage(input=10, output=2) + Usage(input=5, cached=4)
    Usage(input=15, output=2, cached=4)
    """

    input: int = 0
    output: int = 0
    cached: int = 0
    reasoning: int = 0
    written: int = 0
    written_1h: int = 0

    @property
    def total(self) -> int:
        return self.input + self.output

    def __add__(self, other: Usage) -> Usage:
        return Usage(
            self.input + other.input,
            self.output + other.output,
            self.cached + other.cached,
            self.reasoning + other.reasoning,
            self.written + other.written,
            self.written_1h + other.written_1h,
        ).within_bounds()

    def within_bounds(self) -> Usage:
        """This usage with every number from 0 to `MAX_TOKENS`.

        >>> Usage(input=10**30, output=-1).within_bounds()
        Usage(input=9007199254740992)
        """
        if (
            0 <= self.input <= MAX_TOKENS
            and 0 <= self.output <= MAX_TOKENS
            and 0 <= self.cached <= MAX_TOKENS
            and 0 <= self.reasoning <= MAX_TOKENS
            and 0 <= self.written <= MAX_TOKENS
            and 0 <= self.written_1h <= MAX_TOKENS
        ):
            return self
        numbers = (self.input, self.output, self.cached, self.reasoning, self.written, self.written_1h)
        return Usage(*(min(max(0, number), MAX_TOKENS) for number in numbers))


NO_USAGE = Usage()


class Spent(Struct, frozen=True, gc=False):
    """What a model call has used when it is stopped, as far as its server had counted it."""

    usage: Usage = NO_USAGE
    cost: int | None = 0


NOT_SPENT = Spent()


def attach_spent(stopped: BaseException, spent: Spent) -> None:
    """Attach to a cancellation what the stopped call has used.

    It is an attribute and not a subclass of `asyncio.CancelledError`, which `asyncio.timeout` would not recognise.
    """
    vars(stopped)["retinue_spent"] = spent


def spent_of(stopped: BaseException | None) -> Spent:
    """What a stopped call has used.

    >>> error = ValueError()
    >>> attach_spent(error, Spent(Usage(input=5)))
    >>> spent_of(error).usage, spent_of(None).usage
    (Usage(input=5), Usage())
    """
    return NOT_SPENT if stopped is None else vars(stopped).get("retinue_spent", NOT_SPENT)


def add_cost(one: int | None, other: int | None) -> int | None:
    """The sum of two costs, up to `MAX_COST`; unknown if either is unknown.

    >>> add_cost(2, 3), add_cost(2, None)
    (5, None)
    """
    return None if one is None or other is None else min(one + other, MAX_COST)


def dollar_text(cost: int) -> str:
    """A cost to the last nanodollar, because a limit may be smaller than a cent.

    >>> dollar_text(100), dollar_text(0), dollar_text(500_000_000)
    ('$0.0000001', '$0', '$0.5')
    """
    return "$" + f"{cost // NANO}.{cost % NANO:09d}".rstrip("0").rstrip(".")


def dollars(cost: int | None) -> float | None:
    """A cost in dollars; None stays None.

    >>> dollars(1_500_000)
    0.0015
    """
    return None if cost is None else cost / NANO


def count(number: int) -> str:
    """A number of tokens.

    >>> count(950), count(12_345), count(3_400_000)
    ('950', '12.3k', '3.4M')
    """
    if number < 1000:
        return str(number)
    return f"{number / 1000:.1f}k" if number < 1_000_000 else f"{number / 1_000_000:.1f}M"


def tokens_text(number: int) -> str:
    """A number of tokens, with the word.

    >>> tokens_text(1), tokens_text(950), tokens_text(12_345)
    ('1 token', '950 tokens', '12.3k tokens')
    """
    return f"{count(number)} token{'' if number == 1 else 's'}"


def money(cost: int | None) -> str:
    """A cost in dollars; an unknown cost is a question mark.

    >>> money(0), money(None), money(1_234_567), money(2_500_000_000)
    ('$0', '?', '$0.0012', '$2.50')
    """
    if cost is None:
        return "?"
    if cost == 0:
        return "$0"
    return f"${cost / NANO:.2f}" if cost >= NANO // 10 else f"${cost / NANO:.4f}"
