"""The meter of dialects, and traces and metrics that are exported: on request of arguments, variables or settings.

The variables are the standard ones of OpenTelemetry, which is imported only if one of these asks for it.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any

from retinue.core.errors import BadInput
from retinue.core.log_context import logger
from retinue.core.ports import Meter, NoMeter
from retinue.version import __version__

if TYPE_CHECKING:
    from opentelemetry import metrics

    from retinue.telemetry.spans import OtelTracing

log = logger("retinue.app")

ENDPOINT = "OTEL_EXPORTER_OTLP_ENDPOINT"
DEFAULT_ENDPOINT = "http://localhost:4318"
TIMEOUT = 5.0
"""Seconds for one export, if OTEL_EXPORTER_OTLP_TIMEOUT does not say otherwise: a command waits for the last one."""

EXPORTERS = ("otlp", "console", "none")
"""The exporters that `OTEL_TRACES_EXPORTER` and `OTEL_METRICS_EXPORTER` may name."""

INSTALL = "install the extra otel (from the repository: pip install '.[otel]')"


@dataclass(frozen=True, slots=True, kw_only=True)
class Telemetry:
    """Traces and metrics of a retinue, for `retinue.open(telemetry=...)`.

    - `otel`: True exports, False does not. None exports if `endpoint`, a provider or a standard variable of
      OpenTelemetry (`OTEL_EXPORTER_OTLP_ENDPOINT`, `OTEL_TRACES_EXPORTER`, ...) is set, or if the program has installed
      a tracer provider of OpenTelemetry's SDK.
    - `endpoint`: the base address of a collector, by default `http://localhost:4318`; the variables go before it.
    - `headers`: headers of exports, with names of environment variables that have their values.
    - `service_name`: the name of this program in traces, unless `OTEL_SERVICE_NAME` has one.
    - `propagate_to`: hosts to which web tools send the trace context; none by default.
    - `tracer_provider`, `meter_provider`: providers of OpenTelemetry's SDK to use instead of new ones.

    >>> Telemetry(otel=False).endpoint
    ''
    """

    otel: bool | None = None
    endpoint: str = ""
    headers: Mapping[str, str] = field(default_factory=dict[str, str])
    service_name: str = "retinue"
    propagate_to: tuple[str, ...] = ()
    tracer_provider: Any = None
    meter_provider: Any = None


@dataclass(frozen=True, slots=True)
class Exporting:
    """What exports: the tracing port, a description of the destination, the meter provider, and how to end it."""

    tracing: OtelTracing
    destination: str
    meter_provider: Any
    close: Callable[[], None]


CheckHeader = Callable[[str, str, Sequence[str]], None]
"""Takes an address, what has values of variables, and their names; raises `BadInput` if they must not be sent there."""


def start(telemetry: Telemetry, environment: Mapping[str, str], check: CheckHeader) -> Exporting | None:
    """Begin to export; None if nothing asks for it. `check` decides on headers of the settings.

    Raises `BadInput` if `telemetry` asks for it and the extra is missing, or an exporter is unknown.
    """
    is_asked = telemetry.otel or telemetry.endpoint or telemetry.tracer_provider is not None
    if telemetry.otel is False or environment.get("OTEL_SDK_DISABLED", "").strip().lower() == "true":
        return None
    installed = telemetry.tracer_provider or _installed_provider()
    if installed is None and not is_asked and not is_configured(environment):
        return None
    if not _is_installed("opentelemetry.sdk.trace"):
        if not is_asked:
            log.warning("traces are configured, and OpenTelemetry is not installed: %s", INSTALL)
            return None
        raise BadInput(f"traces need OpenTelemetry: {INSTALL}")
    from retinue.telemetry.spans import OtelTracing

    if installed is not None:
        meters = telemetry.meter_provider or _installed_meters()
        return Exporting(OtelTracing(installed, meters, environment=environment), "the program's own", meters, _nothing)
    return _own_providers(telemetry, environment, check)


def is_configured(environment: Mapping[str, str]) -> bool:
    """Whether a standard variable asks for an export.

    >>> is_configured({}), is_configured({"OTEL_TRACES_EXPORTER": "none"}), is_configured({ENDPOINT: "http://c:4318"})
    (False, False, True)
    """
    chosen = [environment.get(f"OTEL_{signal}_EXPORTER", "").strip() for signal in ("TRACES", "METRICS")]
    if any(chosen):
        return any(each not in ("", "none") for each in chosen)
    return any(environment.get(name) for name in (ENDPOINT, *_ENDPOINTS.values()))


_ENDPOINTS = {
    "traces": "OTEL_EXPORTER_OTLP_TRACES_ENDPOINT",
    "metrics": "OTEL_EXPORTER_OTLP_METRICS_ENDPOINT",
}


def _is_installed(module: str) -> bool:
    try:
        return find_spec(module) is not None
    except ModuleNotFoundError:
        return False


def _installed_provider() -> Any:
    """The tracer provider that the program has installed, if it is one of the SDK; nothing is imported to find out."""
    sdk, api = sys.modules.get("opentelemetry.sdk.trace"), sys.modules.get("opentelemetry.trace")
    if sdk is None or api is None:
        return None
    provider = api.get_tracer_provider()
    return provider if isinstance(provider, sdk.TracerProvider) else None


def _installed_meters() -> Any:
    from opentelemetry.metrics import get_meter_provider

    return get_meter_provider()


def _nothing() -> None:
    """The program ends its own providers."""


def _own_providers(telemetry: Telemetry, environment: Mapping[str, str], check: CheckHeader) -> Exporting:
    from opentelemetry.sdk.metrics import MeterProvider
    from opentelemetry.sdk.metrics.export import ConsoleMetricExporter, PeriodicExportingMetricReader
    from opentelemetry.sdk.resources import Resource
    from opentelemetry.sdk.trace import TracerProvider
    from opentelemetry.sdk.trace.export import BatchSpanProcessor, ConsoleSpanExporter

    from retinue.telemetry.spans import OtelTracing

    attributes = {"service.version": __version__}
    if not environment.get("OTEL_SERVICE_NAME"):
        attributes["service.name"] = telemetry.service_name
    resource = Resource.create(attributes)
    tracers = TracerProvider(resource=resource, shutdown_on_exit=False)
    destination = ""
    match _exporter("TRACES", environment):
        case "otlp":
            exporter, destination = _otlp("traces", telemetry, environment, check)
            tracers.add_span_processor(BatchSpanProcessor(exporter))
        case "console":
            tracers.add_span_processor(BatchSpanProcessor(ConsoleSpanExporter(out=sys.stderr)))
            destination = "stderr"
        case _:
            destination = "nowhere (OTEL_TRACES_EXPORTER=none)"
    readers: list[Any] = []
    match _exporter("METRICS", environment):
        case "otlp":
            readers.append(PeriodicExportingMetricReader(_otlp("metrics", telemetry, environment, check)[0]))
        case "console":
            readers.append(PeriodicExportingMetricReader(ConsoleMetricExporter(out=sys.stderr)))
        case _:
            pass
    meters = MeterProvider(readers, resource=resource, shutdown_on_exit=False)

    def close() -> None:
        tracers.shutdown()
        meters.shutdown()

    return Exporting(OtelTracing(tracers, meters, environment=environment), destination, meters, close)


def _exporter(signal: str, environment: Mapping[str, str]) -> str:
    variable = f"OTEL_{signal}_EXPORTER"
    name = environment.get(variable, "").strip() or "otlp"
    if name not in EXPORTERS:
        raise BadInput(f"{variable}: found {name!r:.80}; expected one of: {', '.join(EXPORTERS)}")
    protocol = environment.get("OTEL_EXPORTER_OTLP_PROTOCOL", "").strip() or "http/protobuf"
    if name == "otlp" and protocol != "http/protobuf":
        raise BadInput(f"OTEL_EXPORTER_OTLP_PROTOCOL: found {protocol!r:.80}; retinue exports by http/protobuf")
    return name


def _otlp(signal: str, telemetry: Telemetry, environment: Mapping[str, str], check: CheckHeader) -> tuple[Any, str]:
    """The OTLP exporter of a signal, and its address."""
    if not _is_installed("opentelemetry.exporter.otlp.proto.http"):
        raise BadInput(f"exports need the OTLP exporter of OpenTelemetry: {INSTALL}")
    if signal == "traces":
        from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter as Exporter
    else:
        from opentelemetry.exporter.otlp.proto.http.metric_exporter import OTLPMetricExporter as Exporter

    timeout = None if environment.get("OTEL_EXPORTER_OTLP_TIMEOUT") else TIMEOUT
    own = environment.get(_ENDPOINTS[signal])
    base = environment.get(ENDPOINT) or telemetry.endpoint or DEFAULT_ENDPOINT
    address = own or f"{base.rstrip('/')}/v1/{signal}"
    headers = _headers(telemetry, environment, signal)
    for header in headers:
        check(address, f"header {header} of exports", [telemetry.headers[header]])
    session = None if any(map(environment.get, _SESSIONS)) else _session()
    return Exporter(endpoint=address, timeout=timeout, headers=headers or None, session=session), address


_SESSIONS = tuple(
    f"OTEL_PYTHON_EXPORTER_OTLP_HTTP_{signal}CREDENTIAL_PROVIDER" for signal in ("", "TRACES_", "METRICS_")
)
"""Variables with which a program gives the exporter a session of its own."""


def _session() -> Any:
    """A session that follows no redirect: its headers and spans are for the configured address alone."""
    import requests

    def refuse(response: Any, **_: Any) -> None:
        if response.is_redirect:
            response.close()
            raise requests.TooManyRedirects(f"{response.url} answers with a redirect, which is not followed")

    session = requests.Session()
    session.hooks["response"].append(refuse)
    return session


def _headers(telemetry: Telemetry, environment: Mapping[str, str], signal: str) -> dict[str, str]:
    """The headers of the settings with their values, unless a variable names another collector for the signal."""
    if environment.get(ENDPOINT) or environment.get(_ENDPOINTS[signal]):
        return {}
    if missing := [variable for variable in telemetry.headers.values() if not environment.get(variable)]:
        raise BadInput(f"telemetry: the environment variable {missing[0]} is not set; it has a header of exports")
    return {header: environment[variable] for header, variable in telemetry.headers.items()}


NAME = "retinue"
"""The instrumentation scope of all metrics."""


def meter(provider: metrics.MeterProvider | None = None) -> Meter:
    """A meter for OpenTelemetry, or `NoMeter` if its API is not installed; without `provider`, of the program's own."""
    return OtelMeter(provider) if _is_installed("opentelemetry.metrics") else NoMeter()


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
