"""How the end of a run is told to others: in the words of the dialect that started it."""

from __future__ import annotations

from collections.abc import Mapping

from retinue.core.events import RunAccepted
from retinue.core.run import Outcome
from retinue.dialects.base import Announces, Dialect, HandsOver
from retinue.engine import PlainOutcomeTexts


class DialectOutcomeTexts(PlainOutcomeTexts):
    """Asks the dialect of a run, where it is there and has words of its own."""

    def __init__(self, dialects: Mapping[str, Dialect]) -> None:
        self._dialects = dialects

    def notice(self, accepted: RunAccepted, outcome: Outcome) -> str:
        """What a parent's model reads of a child that announces its end."""
        dialect = self._dialects.get(accepted.dialect)
        return (
            dialect.notice(accepted, outcome) if isinstance(dialect, Announces) else super().notice(accepted, outcome)
        )

    def handover(self, accepted: RunAccepted, outcome: Outcome) -> tuple[bool, str]:
        """Whether a run did what others wait for, and its result or the reason."""
        dialect = self._dialects.get(accepted.dialect)
        if isinstance(dialect, HandsOver):
            return dialect.handover(outcome)
        return super().handover(accepted, outcome)
