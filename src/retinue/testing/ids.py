"""Names that a test can write down beforehand: they count."""

from itertools import count


class CountedIds:
    """Ids in the order of their making.

    >>> ids = CountedIds("child")
    >>> ids.new(), ids.new()
    ('child-0001', 'child-0002')
    """

    def __init__(self, prefix: str = "run") -> None:
        self._prefix = prefix
        self._numbers = count(1)

    def new(self) -> str:
        """The next id."""
        return f"{self._prefix}-{next(self._numbers):04}"
