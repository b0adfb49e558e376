"""More lines for scripted models: ones that change with the asking, and ones that remember what was asked."""

from collections.abc import Sequence

from retinue.core.messages import Message
from retinue.core.ports import Request
from retinue.providers.scripted import Line, LineFunction


def in_turn(*lines: Line) -> LineFunction:
    """A line that is another one each time it is asked for: first the life before the crash, then the one after."""
    left = iter(lines)
    return lambda _: next(left)


def hearing(heard: list[Sequence[Message]], line: Line) -> LineFunction:
    """A line whose speaker keeps what it was told."""

    def listen(request: Request) -> Line:
        heard.append(tuple(request.messages))
        return line

    return listen
