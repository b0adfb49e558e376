"""Metrics as an OpenTelemetry SDK receives them."""

import sys
from typing import Any

import pytest
from opentelemetry import metrics
from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.metrics.export import HistogramDataPoint, InMemoryMetricReader

from retinue.core.ports import NoMeter
from retinue.telemetry import exporters
from retinue.telemetry.exporters import OtelMeter


def points(reader: InMemoryMetricReader) -> dict[str, list[tuple[dict[str, Any], Any]]]:
    """All points by metric name: attributes, and the value or the count and sum of values."""
    data = reader.get_metrics_data()
    assert data is not None
    (resource,) = data.resource_metrics
    (scope,) = resource.scope_metrics
    assert scope.scope.name == "retinue"
    return {
        metric.name: [
            (
                dict(point.attributes or {}),
                (point.count, point.sum) if isinstance(point, HistogramDataPoint) else getattr(point, "value", None),
            )
            for point in metric.data.data_points
        ]
        for metric in scope.metrics
    }


def test_counts_and_measurements_reach_the_sdk(monkeypatch: pytest.MonkeyPatch) -> None:
    reader = InMemoryMetricReader()
    provider = MeterProvider([reader])
    monkeypatch.setattr(metrics, "get_meter", provider.get_meter)
    meter = exporters.meter()

    for status in ("complete", "complete", "incomplete"):
        meter.count("subagent_completions_total", depth="1", status=status)
    meter.move("subagent_active_count", 1, depth="1")
    meter.move("subagent_active_count", 1, depth="1")
    meter.move("subagent_active_count", -1, depth="1")
    meter.measure("subagent_duration_seconds", 1.5, depth="1", status="complete")
    meter.measure("subagent_duration_seconds", 2.5, depth="1", status="complete")
    meter.measure("subagent_turns_used", 3)

    assert points(reader) == {
        "subagent_completions_total": [
            ({"depth": "1", "status": "complete"}, 2),
            ({"depth": "1", "status": "incomplete"}, 1),
        ],
        "subagent_active_count": [({"depth": "1"}, 1)],
        "subagent_duration_seconds": [({"depth": "1", "status": "complete"}, (2, 4.0))],
        "subagent_turns_used": [({}, (1, 3))],
    }
    provider.shutdown()


def test_without_opentelemetry_nothing_is_recorded(monkeypatch: pytest.MonkeyPatch) -> None:
    assert isinstance(exporters.meter(), OtelMeter)

    for name in [name for name in sys.modules if name.split(".")[0] == "opentelemetry"]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setattr(sys, "path", [])
    monkeypatch.setattr(sys, "path_importer_cache", {})
    meter = exporters.meter()

    assert isinstance(meter, NoMeter)
    meter.count("a")
    meter.move("b", 1)
    meter.measure("c", 1.0)
