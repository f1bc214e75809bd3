"""A collector of OpenTelemetry: receives spans by OTLP over HTTP; and processes that export theirs to it."""

from __future__ import annotations

import os
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import TYPE_CHECKING, NamedTuple

from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest

if TYPE_CHECKING:
    from pathlib import Path

#: What `opentelemetry-instrument` does, in each process with this folder on its path, also in Spark's for Python.
_EXPORTS = """
from opentelemetry import trace
from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor

provider = TracerProvider()
provider.add_span_processor(SimpleSpanProcessor(OTLPSpanExporter()))
trace.set_tracer_provider(provider)
"""


class Received(NamedTuple):
    """A span. ``parent``: empty if it has none; ``links``: ids of traces."""

    service: str
    name: str
    trace_id: bytes
    span_id: bytes
    parent: bytes
    links: frozenset[bytes]


class Collector:
    """Keeps what it receives in ``spans``. Use as a context."""

    def __init__(self) -> None:
        self.spans: list[Received] = []
        received = self.spans

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                content = self.rfile.read(int(self.headers["Content-Length"]))
                received.extend(_spans(ExportTraceServiceRequest.FromString(content)))
                self.send_response(200)
                self.end_headers()

            def log_message(self, *_: object) -> None:
                """Not on stderr."""

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self._server.server_port}/v1/traces"

    def __enter__(self) -> Collector:
        threading.Thread(target=self._server.serve_forever, daemon=True).start()
        return self

    def __exit__(self, *_: object) -> None:
        self._server.shutdown()
        self._server.server_close()

    def environ(self, folder: Path, service: str) -> dict[str, str]:
        """The environment of a process of this name that exports its spans; ``folder``: for its Python modules."""
        (folder / "sitecustomize.py").write_text(_EXPORTS)
        path = os.pathsep.join(filter(None, (str(folder), os.environ.get("PYTHONPATH"))))
        return {"PYTHONPATH": path, "OTEL_SERVICE_NAME": service, "OTEL_EXPORTER_OTLP_TRACES_ENDPOINT": self.url}


def _spans(export: ExportTraceServiceRequest) -> list[Received]:
    found = []
    for of_resource in export.resource_spans:
        named = {each.key: each.value.string_value for each in of_resource.resource.attributes}
        for span in (span for scope in of_resource.scope_spans for span in scope.spans):
            ids = span.trace_id, span.span_id, span.parent_span_id
            links = frozenset(link.trace_id for link in span.links)
            found.append(Received(named["service.name"], span.name, *ids, links))
    return found
