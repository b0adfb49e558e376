"""Automatic pruning by the settings: when it is due, what it removes, and that two processes do it once."""

from pathlib import Path

from retinue.app import retention
from retinue.app.open import open_read_only
from retinue.app.retention import INTERVAL, prune_if_due, requests
from retinue.config.store import StoreSettings
from retinue.core.ports import Clock, PruneRequest
from retinue.providers.scripted import Script, ScriptedProvider, says
from tests.cli.stage import finished_run


class Later:
    """A clock that is ahead."""

    def __init__(self, clock: Clock, seconds: float) -> None:
        self._clock = clock
        self.seconds = seconds

    def now(self) -> float:
        return self._clock.now() + self.seconds


def test_nothing_is_pruned_by_default() -> None:
    assert requests(StoreSettings(), 1e9) == []
    assert not retention.prunes(StoreSettings())


def test_age_and_size_make_one_request_each() -> None:
    assert requests(StoreSettings(keep_days=30, keep_mb=500), 1e9) == [
        PruneRequest(before=1e9 - 30 * 86_400.0, keep_sessions=True),
        PruneRequest(before=1e9 - 3600.0, max_bytes=500_000_000, keep_sessions=True),
    ]


async def test_ended_runs_are_pruned_when_it_is_due(tmp_path: Path) -> None:
    provider = ScriptedProvider(Script().play("main", says("Done."), says("Done.")))
    await finished_run(tmp_path, provider)
    settings = StoreSettings(keep_days=1)

    async with open_read_only(home=tmp_path) as client:
        first = await prune_if_due(client, settings)
        client.supervisor.clock = Later(client.supervisor.clock, 2 * 86_400.0)
        second = await prune_if_due(client, settings)
        third = await prune_if_due(client, settings)
        client.supervisor.clock.seconds += INTERVAL
        cut_short = await prune_if_due(client, settings, should_stop=lambda: True)
        fourth = await prune_if_due(client, settings)
        left = await client.list(everyone=True)

    assert (first, second, third, cut_short, fourth) == (0, 1, None, 0, 0)
    assert left == []
