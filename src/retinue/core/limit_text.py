"""Texts about limits that a run has met, for people and for the model of a caller."""

from __future__ import annotations

from retinue.core.policy import COST
from retinue.core.run import LimitMet
from retinue.core.usage import dollar_text

_TOKEN_BUDGETS = {
    "input": "the input token budget (max_input_tokens)",
    "output": "the output token budget (max_output_tokens)",
}


def limit_text(limit: LimitMet) -> str:
    """Which limit ended a run: what was used of it, what it left, and what the next call needed.

    What is neither used nor left is reserved: for children, or for the wrap-up turn.

    >>> limit_text(LimitMet("max_turns", 3, 3))
    'the turn limit was reached without a final answer: used 3, limit 3'
    >>> limit_text(LimitMet("max_tokens", 5000, 9000, dimension="tokens", left=4000, needed=8466))
    'the token budget leaves too little for the next call: used 5000, limit 9000, left 4000, needed at least 8466'
    >>> limit_text(LimitMet("max_tokens", 0, 50, dimension="tokens", left=40, needed=45)).partition(": ")[2]
    'limit 50, of which 10 is reserved for a final answer, needed at least 45'
    >>> limit_text(LimitMet("max_tokens", 70, 99, dimension="tokens", left=9, needed=12))
    'the token budget leaves too little for the next call: used 70, limit 99, reserved 20, left 9, needed at least 12'
    >>> limit_text(LimitMet("max_cost", 20_000_000, 20_000_000, dimension="cost", needed=4_500_000))
    'the cost limit is spent: used $0.02, limit $0.02; the next call would have cost at least $0.0045'
    """
    numbers = f"used {_amount(limit, limit.used)}, limit {_amount(limit, limit.limit)}"
    if limit.reason == "max_turns":
        return f"the turn limit was reached without a final answer: {numbers}"
    if limit.reason == "max_calls":
        return f"the tool call budget is spent: {numbers}"
    if limit.reason == "looping":
        return f"the model made the same calls with the same results in {limit.used} replies in a row (max_repeats)"
    name = _name(limit)
    if limit.needed and not limit.used:
        numbers, needed = f"limit {_amount(limit, limit.limit)}", _amount(limit, limit.needed)
        if limit.left and (reserved := limit.limit - limit.left):
            numbers += f", of which {_amount(limit, reserved)} is reserved for a final answer"
        return f"{name} is too small for the first call: {numbers}, needed at least {needed}"
    if limit.needed and limit.left:
        if reserved := limit.limit - limit.used - limit.left:
            numbers += f", reserved {_amount(limit, reserved)}"
        left, needed = _amount(limit, limit.left), _amount(limit, limit.needed)
        return f"{name} leaves too little for the next call: {numbers}, left {left}, needed at least {needed}"
    if limit.needed and _is_cost(limit):
        numbers += f"; the next call would have cost at least {_amount(limit, limit.needed)}"
    return f"{name} is spent: {numbers}"


def held_text(limit: LimitMet) -> str:
    """What is held for a call that does not fit as it is.

    >>> held_text(LimitMet("max_tokens", 520, 1000, dimension="tokens", left=480, held=450))
    '450 output tokens are held for the next call, all that the token budget leaves: used 520, limit 1000, left 480'
    """
    numbers = ", ".join(
        f"{what} {_amount(limit, number)}"
        for what, number in (("used", limit.used), ("limit", limit.limit), ("left", limit.left))
    )
    return f"{limit.held} output tokens are held for the next call, all that {_name(limit)} leaves: {numbers}"


def cut_text(limit: LimitMet) -> str:
    """Why an answer was cut off: the output that a limit left for it.

    >>> cut_text(LimitMet("max_tokens", 1000, 1000, dimension="tokens", held=480))
    'cut off after 480 output tokens, all that the token budget left (used 1000, limit 1000)'
    """
    numbers = f"used {_amount(limit, limit.used)}, limit {_amount(limit, limit.limit)}"
    return f"cut off after {limit.held} output tokens, all that {_name(limit)} left ({numbers})"


def short_limit_text(limit: LimitMet) -> str:
    """A limit in a few words, for the model that has to answer because of it.

    >>> short_limit_text(LimitMet("max_turns", 2, 3)), short_limit_text(LimitMet("max_cost", 1, 250_000_000))
    ('turns: 3', 'cost: $0.25')
    """
    if limit.reason == "looping":
        return f"the same calls with the same results in a row: {limit.limit}"
    what = "cost" if _is_cost(limit) else "tokens" if limit.reason == "window" else limit.reason.removeprefix("max_")
    return f"{what}: {_amount(limit, limit.limit)}"


def _name(limit: LimitMet) -> str:
    if limit.account.startswith(COST):
        agent = limit.account.removeprefix(COST)
        return f"the daily cost limit of agent {agent!r} (max_cost_per_day_cents)"
    name = "the cost limit" if _is_cost(limit) else _TOKEN_BUDGETS.get(limit.dimension or "", "the token budget")
    if limit.reason == "window":
        return f"{name} that several runs share"
    return f"{name} of a run above this one" if limit.account else name


def _is_cost(limit: LimitMet) -> bool:
    return limit.reason == "max_cost" or limit.dimension == "cost"


def _amount(limit: LimitMet, number: int) -> str:
    return dollar_text(number) if _is_cost(limit) else str(number)
