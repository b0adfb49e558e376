"""The section `[telemetry]`: where traces and metrics go."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated

from msgspec import Meta, Struct

from retinue.config.section_type import Section

CollectorUrl = Annotated[
    str,
    Meta(pattern=r"\Ahttps?://[^\s/]+(/\S*)?\Z", max_length=2048, extra={"expected": "an http or https address"}),
]
Host = Annotated[
    str, Meta(pattern=r"\A[A-Za-z0-9.:\[\]-]{1,253}\Z", extra={"expected": "a host name, without scheme and path"})
]
Variable = Annotated[
    str, Meta(pattern=r"\A[A-Za-z_][A-Za-z0-9_]*\Z", extra={"expected": "the name of an environment variable"})
]


class TelemetrySettings(Struct, frozen=True, kw_only=True):
    """Traces and metrics for OpenTelemetry. The standard variables (`OTEL_...`) go before these settings."""

    otel: Annotated[
        bool | None,
        Meta(description="Whether to export; unset, an endpoint here or in a variable decides.", examples=[True]),
    ] = None
    endpoint: Annotated[
        CollectorUrl | None,
        Meta(
            description="The base address of a collector that reads OTLP over HTTP.",
            examples=["http://localhost:4318"],
        ),
    ] = None
    headers: Annotated[
        Mapping[str, Variable],
        Meta(
            description="Headers of exports, with names of environment variables that have their values.",
            examples=[{"Authorization": "OTEL_AUTH"}],
        ),
    ] = {}
    service_name: Annotated[
        str, Meta(min_length=1, max_length=200, description="The name of this program in traces.", examples=["retinue"])
    ] = "retinue"
    propagate_to: Annotated[
        tuple[Host, ...],
        Meta(
            description="Hosts to which web tools send the trace context, as the header traceparent.",
            examples=[["tools.example.com"]],
        ),
    ] = ()


TELEMETRY = Section(name="telemetry", type=TelemetrySettings, about="Traces and metrics for OpenTelemetry.")
