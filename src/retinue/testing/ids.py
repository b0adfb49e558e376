"""Predictable run ids for tests."""

from itertools import count


class CountedIds:
    """Sequential ids.

    >>> ids = CountedIds("child")
    >>> ids.new(), ids.new()
    ('child-0001', 'child-0002')
    """

    def __init__(self, prefix: str = "run") -> None:
        self._prefix = prefix
        self._numbers = count(1)

    def new(self) -> str:
        return f"{self._prefix}-{next(self._numbers):04}"
