"""The verbs that wait: for the ends of runs, and for the answers of runs that stay."""

from __future__ import annotations

from collections.abc import Sequence

from retinue.core.ids import Key, RunId
from retinue.core.run import Exchange, Outcome
from retinue.engine.looking import Looking


class Waiting(Looking):
    """Waits in memory for what happens here, and with the pulse of the driver for what happens elsewhere."""

    async def wait(
        self, run_ids: Sequence[RunId], *, count: int | None = None, timeout: float | None = None, outside: bool = False
    ) -> dict[RunId, Outcome]:
        """How these runs ended: all of them, or the first `count`, or those that did within `timeout` seconds.

        A caller from outside hears of an end once it is on disk. The order is that of the ends.
        """
        needed = len(set(run_ids)) if count is None else min(count, len(set(run_ids)))
        ended: dict[RunId, tuple[float, Outcome]] = {}
        with self.roster.watch(run_ids) as watch:
            try:
                with self.parts.deadlines.within(timeout):
                    news = list(dict.fromkeys(run_ids))
                    while True:
                        for run_id in news:
                            if run_id not in ended and (end := await self._end(run_id, outside=outside)):
                                ended[run_id] = end
                        if len(ended) >= needed:
                            break
                        self.check_open()
                        news = await watch.news()
            except TimeoutError:
                pass
        # Some may have ended before anyone waited: then the news are in the order of the asking.
        first = sorted(ended.items(), key=lambda item: item[1][0])[:needed]
        return {run_id: outcome for run_id, (_, outcome) in first}

    async def outcome(self, run_id: RunId, *, outside: bool = False) -> Outcome | None:
        """How a run ended, or None if it has not."""
        end = await self._end(run_id, outside=outside)
        return None if end is None else end[1]

    async def _end(self, run_id: RunId, *, outside: bool) -> tuple[float, Outcome] | None:
        """When and how a run ended."""
        if self.here(run_id) is not None:
            return None
        if (ended := self.roster.ended.get(run_id)) is not None:
            if outside and ended.ticket is not None:
                await ended.ticket.wait()
            return ended.view.ended_at or 0.0, ended.outcome
        progress = (await self.row(run_id)).progress
        return None if progress.outcome is None else (progress.ended_at or 0.0, progress.outcome)

    async def exchange(self, run_id: RunId, number: int, *, outside: bool = False) -> Exchange:
        """The answer to a run's `number`-th input, counted from 1; of a run that ended before, how it ended.

        A caller from outside hears of it once it is on disk.
        """
        with self.roster.watch((run_id,)) as watch:
            while True:
                driven = self.here(run_id)
                if driven is not None and len(driven.run.exchanges) >= number:
                    if outside and driven.last_write is not None:
                        await driven.last_write.wait()
                    return driven.run.exchanges[number - 1]
                if driven is None and (known := await self._exchange_elsewhere(run_id, number)) is not None:
                    return known
                self.check_open()
                await watch.news()

    async def reply_to(self, run_id: RunId, key: Key, *, outside: bool = False) -> Exchange:
        """The answer to the input that was posted with this key; of a run that ended before it, how it ended."""
        with self.roster.watch((run_id,)) as watch:
            while True:
                driven = self.here(run_id)
                run = driven.run if driven is not None else await self.recall(run_id)
                if (number := run.inputs.get(key)) is not None:
                    return await self.exchange(run_id, number, outside=outside)
                if run.outcome is not None:
                    return _as_exchange(run.outcome)
                self.check_open()
                await watch.news()

    async def _exchange_elsewhere(self, run_id: RunId, number: int) -> Exchange | None:
        """An exchange of a run that is over, or that another process drives."""
        if (outcome := await self.outcome(run_id)) is not None:
            return await self._past_exchange(run_id, number, outcome)
        exchanges = (await self.recall(run_id)).exchanges
        return exchanges[number - 1] if len(exchanges) >= number else None

    async def _past_exchange(self, run_id: RunId, number: int, outcome: Outcome) -> Exchange:
        ended = self.roster.ended.get(run_id)
        if ended is None or ended.exchanges >= number:  # a run that was never born has no events to recall
            run = await self.recall(run_id)
            if len(run.exchanges) >= number:
                return run.exchanges[number - 1]
        return _as_exchange(outcome)


def _as_exchange(outcome: Outcome) -> Exchange:
    """What whoever still waits for an answer hears of a run that is over."""
    return Exchange(
        result=outcome.result, reason=outcome.reason, text=outcome.text, error=outcome.error, limit=outcome.limit
    )
