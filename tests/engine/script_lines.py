"""More lines for scripted models: a different one for each request, and one that records its requests."""

from collections.abc import Sequence

from retinue.core.messages import Message
from retinue.core.ports import Request
from retinue.providers.scripted import Line, LineFunction


def in_sequence(*lines: Line) -> LineFunction:
    """A different line for each request: the first before a crash, the next after it."""
    left = iter(lines)
    return lambda _: next(left)


def recording(requests: list[Sequence[Message]], line: Line) -> LineFunction:
    """A line that appends the messages of its request to `requests`."""

    def record(request: Request) -> Line:
        requests.append(tuple(request.messages))
        return line

    return record
