"""Counters and measurements of dialects through OpenTelemetry, if its API is installed.

Without a configured SDK the instruments record nothing; `telemetry/exporters.py` configures one.
"""

from __future__ import annotations

from importlib.util import find_spec
from typing import TYPE_CHECKING

from retinue.core.ports import Meter, NoMeter
from retinue.version import __version__

if TYPE_CHECKING:
    from opentelemetry import metrics

NAME = "retinue"
"""The instrumentation scope of all metrics."""


def meter(provider: metrics.MeterProvider | None = None) -> Meter:
    """A meter for OpenTelemetry, or `NoMeter` if its API is not installed; without `provider`, of the program's own."""
    return OtelMeter(provider) if _is_installed() else NoMeter()


def _is_installed() -> bool:
    try:
        return find_spec("opentelemetry.metrics") is not None
    except ModuleNotFoundError:
        return False


class OtelMeter:
    """A `Meter` that creates each instrument on first use; before that OpenTelemetry is not imported."""

    def __init__(self, provider: metrics.MeterProvider | None = None) -> None:
        self._provider = provider
        self._meter: metrics.Meter | None = None
        self._counters: dict[str, metrics.Counter] = {}
        self._gauges: dict[str, metrics.UpDownCounter] = {}
        self._histograms: dict[str, metrics.Histogram] = {}

    def count(self, name: str, **attributes: str) -> None:
        if name not in self._counters:
            self._counters[name] = self._otel_meter().create_counter(name)
        self._counters[name].add(1, attributes)

    def move(self, name: str, change: int, **attributes: str) -> None:
        if name not in self._gauges:
            self._gauges[name] = self._otel_meter().create_up_down_counter(name)
        self._gauges[name].add(change, attributes)

    def measure(self, name: str, value: float, **attributes: str) -> None:
        if name not in self._histograms:
            self._histograms[name] = self._otel_meter().create_histogram(
                name, unit="s" if name.endswith("_seconds") else ""
            )
        self._histograms[name].record(value, attributes)

    def _otel_meter(self) -> metrics.Meter:
        if self._meter is None:
            from opentelemetry.metrics import get_meter

            provider = self._provider
            self._meter = get_meter(NAME, __version__) if provider is None else provider.get_meter(NAME, __version__)
        return self._meter
