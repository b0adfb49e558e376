"""A collector on loopback: receives what the official OTLP exporter sends, and decodes its protobuf."""

from __future__ import annotations

import gzip
import threading
from collections import Counter
from dataclasses import dataclass
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, Self

from opentelemetry.proto.collector.metrics.v1.metrics_service_pb2 import ExportMetricsServiceRequest
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest


@dataclass(frozen=True)
class Span:
    """A received span; ids are in hexadecimal, and `parent` is empty for the root of a trace."""

    trace: str
    id: str
    parent: str
    name: str
    attributes: dict[str, Any]
    start: int
    end: int
    error: str
    service: str


class Collector:
    """Receives traces and metrics while the block lasts; `url` is its base address.

    With `elsewhere`, the base address of another collector, it redirects there, and receives nothing.
    """

    def __init__(self, elsewhere: str = "") -> None:
        self.received: list[Span] = []
        """All spans in the order of their arrival, repeated ones too."""
        self.metrics: dict[str, list[tuple[dict[str, Any], Any]]] = {}
        self.headers: list[dict[str, str]] = []
        collector = self

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                body = self.rfile.read(int(self.headers["Content-Length"]))
                if self.headers.get("Content-Encoding") == "gzip":
                    body = gzip.decompress(body)
                if elsewhere:
                    self.send_response(307)
                    self.send_header("Location", elsewhere + self.path)
                    self.send_header("Content-Length", "0")
                    self.end_headers()
                    return
                collector.headers.append({name.lower(): value for name, value in self.headers.items()})
                (collector.read_spans if self.path == "/v1/traces" else collector.read_metrics)(body)
                self.send_response(200)
                self.send_header("Content-Length", "0")
                self.end_headers()

            def log_message(self, format: str, *args: object) -> None:
                pass

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self._server.server_port}"
        self._arrived = threading.Condition()
        self._thread = threading.Thread(target=lambda: self._server.serve_forever(0.01), daemon=True)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()

    @property
    def spans(self) -> dict[str, Span]:
        """The received spans by their ids; one that arrived twice has to be the same both times."""
        found: dict[str, Span] = {}
        for span in self.received:
            known = found.setdefault(span.id, span)
            assert known == span
        return found

    def wait_for(self, number: int) -> None:
        """Wait until that many spans have arrived."""
        with self._arrived:
            assert self._arrived.wait_for(lambda: len(self.received) >= number, timeout=60)

    def named(self, name: str) -> Span:
        """The only span with this name."""
        (span,) = [span for span in self.spans.values() if span.name == name]
        return span

    def tree(self) -> Counter[tuple[str, str]]:
        """The names of parent and child of each span; an orphan has the parent `?`."""
        spans = self.spans
        names = {"": ""} | {span.id: span.name for span in spans.values()}
        return Counter((names.get(span.parent, "?"), span.name) for span in spans.values())

    def read_spans(self, body: bytes) -> None:
        request: Any = ExportTraceServiceRequest.FromString(body)
        for resource in request.resource_spans:
            service = _attributes(resource.resource.attributes)["service.name"]
            for scope in resource.scope_spans:
                for span in scope.spans:
                    self.received.append(
                        Span(
                            trace=span.trace_id.hex(),
                            id=span.span_id.hex(),
                            parent=span.parent_span_id.hex(),
                            name=span.name,
                            attributes=_attributes(span.attributes),
                            start=span.start_time_unix_nano,
                            end=span.end_time_unix_nano,
                            error=span.status.message if span.status.code == 2 else "",
                            service=service,
                        )
                    )

        with self._arrived:
            self._arrived.notify_all()

    def read_metrics(self, body: bytes) -> None:
        request: Any = ExportMetricsServiceRequest.FromString(body)
        for resource in request.resource_metrics:
            for scope in resource.scope_metrics:
                for metric in scope.metrics:
                    kind = metric.WhichOneof("data")
                    points = getattr(metric, kind).data_points
                    self.metrics[metric.name] = [
                        (_attributes(point.attributes), point.sum if kind == "histogram" else point.as_double)
                        for point in points
                    ]


def _attributes(pairs: Any) -> dict[str, Any]:
    return {pair.key: _value(pair.value) for pair in pairs}


def _value(value: Any) -> Any:
    kind = value.WhichOneof("value")
    return [_value(each) for each in value.array_value.values] if kind == "array_value" else getattr(value, kind)
