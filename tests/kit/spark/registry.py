"""A schema registry for tests, over HTTP: what Confluent's answers for schemas and subjects.

`running()` gives one on a free port. Schemas are registered by its methods, or by POST as a
producer's library does. Protobuf is registered compiled, and returned so for `?format=serialized`.
No compatibility of versions is checked.
"""

from __future__ import annotations

import base64
import contextlib
import json
import threading
from collections.abc import Container, Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import parse_qs, unquote, urlsplit


class FakeRegistry:
    """The registered schemas, and the errors to answer with."""

    def __init__(self) -> None:
        self.schemas: dict[int, dict[str, Any]] = {}
        self.subjects: dict[str, list[int]] = {}
        self.requests: list[str] = []
        self.password = ""
        """USER:PASSWORD that must come with every request."""
        self.failures: list[int | bytes] = []
        """The responses to the next requests instead of the usual ones: a status, or a body."""
        self.serialized: Container[str] = ("schemas", "subjects")
        """The paths that return Protobuf schemas compiled. Karapace has only `schemas`."""
        self.url = ""
        self._lock = threading.Lock()

    def register(
        self,
        subject: str,
        schema: str | bytes,
        *,
        references: list[tuple[str, str, int]] | None = None,
        number: int = 0,
    ) -> int:
        """Return the schema's number. Avro as JSON text, Protobuf as the bytes of a
        FileDescriptorProto; references: name, subject, version."""
        number = number or 1 + max(self.schemas, default=0)
        one: dict[str, Any] = {"schema": schema}
        if isinstance(schema, bytes):
            one = {"schema": base64.b64encode(schema).decode(), "schemaType": "PROTOBUF"}
        if references:
            names = ("name", "subject", "version")
            one["references"] = [dict(zip(names, each, strict=True)) for each in references]
        self.schemas[number] = one
        self.subjects.setdefault(subject, []).append(number)
        return number

    def answer(self, path: str, serialized: bool) -> dict[str, Any] | None:
        """The document at a path, None if there is none."""
        match path.strip("/").split("/"):
            case ["schemas", "ids", number]:
                return self._shown(int(number), serialized and "schemas" in self.serialized)
            case ["subjects", subject, "versions", version]:
                numbers = self.subjects.get(unquote(subject), [])
                at = len(numbers) if version == "latest" else int(version)
                if not 1 <= at <= len(numbers):
                    return None
                compiled = serialized and "subjects" in self.serialized
                shown = self._shown(numbers[at - 1], compiled) or {}
                return {"subject": subject, "version": at, "id": numbers[at - 1], **shown}
        return None

    def _shown(self, number: int, serialized: bool) -> dict[str, Any] | None:
        one = self.schemas.get(number)
        if one is None or one.get("schemaType") != "PROTOBUF" or serialized:
            return one
        return {**one, "schema": 'syntax = "proto3"; message Text {}'}

    def post(self, path: str, body: dict[str, Any]) -> dict[str, Any] | None:
        """Register a schema, or find a registered one; None for one that is not registered."""
        wanted = {name: body[name] for name in ("schema", "schemaType", "references")
                  if body.get(name)}  # fmt: skip
        with self._lock:
            known = [number for number, one in self.schemas.items() if one == wanted]
            match path.strip("/").split("/"):
                case ["subjects", subject, "versions"]:
                    number = known[0] if known else 1 + max(self.schemas, default=0)
                    self.schemas[number] = wanted
                    numbers = self.subjects.setdefault(unquote(subject), [])
                    if number not in numbers:
                        numbers.append(number)
                    return {"id": number}
                case ["subjects", subject]:
                    numbers = self.subjects.get(unquote(subject), [])
                    for number in set(known) & set(numbers):
                        at = numbers.index(number) + 1
                        return {"subject": subject, "version": at, "id": number, **wanted}
        return None


def _handler(registry: FakeRegistry) -> type[BaseHTTPRequestHandler]:
    class Handler(BaseHTTPRequestHandler):
        # Two writes for each response: see tests.kit.s3_stub.
        disable_nagle_algorithm = True

        def do_GET(self) -> None:
            self._answer(None)

        def do_POST(self) -> None:
            self._answer(json.loads(self.rfile.read(int(self.headers["Content-Length"]))))

        def _answer(self, body: dict[str, Any] | None) -> None:
            parts = urlsplit(self.path)
            registry.requests.append(parts.path)
            wanted = "Basic " + base64.b64encode(registry.password.encode()).decode()
            if registry.failures:
                failure = registry.failures.pop(0)
                if isinstance(failure, bytes):
                    return self._send(200, failure)
                return self._send(failure, b"{}")
            if registry.password and self.headers.get("Authorization") != wanted:
                return self._send(401, b"{}")
            serialized = parse_qs(parts.query).get("format") == ["serialized"]
            found = (
                registry.answer(parts.path, serialized)
                if body is None
                else registry.post(parts.path, body)
            )
            missing = {"error_code": 40403, "message": "Schema not found"}
            self._send(200 if found else 404, json.dumps(found or missing).encode())

        def _send(self, status: int, body: bytes) -> None:
            self.send_response(status)
            self.send_header("Content-Type", "application/vnd.schemaregistry.v1+json")
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, format: str, *args: Any) -> None:
            """Log nothing."""

    return Handler


@contextlib.contextmanager
def running() -> Iterator[FakeRegistry]:
    """Run a registry that is reached at its `url`."""
    registry = FakeRegistry()
    server = ThreadingHTTPServer(("127.0.0.1", 0), _handler(registry))
    registry.url = f"http://127.0.0.1:{server.server_address[1]}"
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02})
    thread.start()
    try:
        yield registry
    finally:
        server.shutdown()
        server.server_close()
        thread.join(10)
