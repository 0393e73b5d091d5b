"""A REST catalog for tests: a front that loses responses, requires tokens and speaks TLS, before
Iceberg's own server (tests.kit.spark.java_catalog) or before pyiceberg's catalog in SQLite."""

from __future__ import annotations

import contextlib
import http.client
import json
import ssl
import threading
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from urllib.parse import parse_qs, unquote, urlsplit

from pyiceberg.catalog.rest import CreateTableRequest
from pyiceberg.catalog.sql import SqlCatalog
from pyiceberg.exceptions import CommitFailedException, NoSuchTableError
from pyiceberg.partitioning import UNPARTITIONED_PARTITION_SPEC
from pyiceberg.table import CommitTableRequest
from pyiceberg.table.sorting import UNSORTED_SORT_ORDER

Answer = tuple[int, bytes]
Backend = Callable[[str, str, bytes], Answer]
"""Method, path with its query, body -> status and JSON."""

LOST, CUT, TWICE, UNDONE, BUSY, CONFLICT = "lost", "cut", "twice", "undone", "busy", "conflict"
"""The faults of a commit: done and answered with 504; done and the connection ends; done, sent
again by a proxy, with the second response returned; not done and 500; not done and 503; not done
and 409."""
FAULTS = (LOST, CUT, TWICE, UNDONE, BUSY, CONFLICT)


@dataclass
class Front:
    """`faults`: of the next commits, one each, None for success; `before`: is called before each
    commit; `token`: required with every request, issued for `credential` (ID:SECRET) and `scope`;
    `prefix`: of paths, returned to clients that name `warehouse`."""

    backend: Backend
    faults: list[str | None] = field(default_factory=list)
    before: Callable[[], None] | None = None
    credential: str = ""
    scope: str = ""
    token: str = ""
    warehouse: str = ""
    prefix: str = ""
    commits: int = 0
    seen: list[str] = field(default_factory=list)
    uri: str = ""
    _server: ThreadingHTTPServer | None = None

    def start(self, context: ssl.SSLContext | None = None) -> Front:
        """Listen on a free port; with TLS if a context is given."""
        front = self

        class Handler(BaseHTTPRequestHandler):
            # Two writes for each response: see tests.kit.s3_stub.
            disable_nagle_algorithm = True

            def do_GET(self) -> None:
                front._handle(self)

            do_POST = do_HEAD = do_DELETE = do_GET

            def log_message(self, *args: Any) -> None:
                """Log nothing."""

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self._server.daemon_threads = True
        scheme = "http"
        if context is not None:
            self._server.socket = context.wrap_socket(self._server.socket, server_side=True)
            scheme = "https"
        threading.Thread(target=self._server.serve_forever, args=(0.02,), daemon=True).start()
        self.uri = f"{scheme}://127.0.0.1:{self._server.server_address[1]}"
        return self

    def stop(self) -> None:
        if self._server is not None:
            self._server.shutdown()
            self._server.server_close()

    def _handle(self, request: BaseHTTPRequestHandler) -> None:
        body = request.rfile.read(int(request.headers.get("Content-Length") or 0))
        answer = self._answer(request, body)
        if answer is None:
            request.close_connection = True
            return
        status, text = answer
        request.send_response(status)
        request.send_header("Content-Type", "application/json")
        request.send_header("Content-Length", str(len(text)))
        request.end_headers()
        if request.command != "HEAD":
            # Clients that are killed do not read their answers.
            with contextlib.suppress(BrokenPipeError, ConnectionResetError):
                request.wfile.write(text)

    def _answer(self, request: BaseHTTPRequestHandler, body: bytes) -> Answer | None:
        """The response; None: the connection ends without one."""
        method, path = request.command, request.path
        self.seen.append(f"{method} {path}")
        if path == "/v1/oauth/tokens" and self.credential:
            return self._token(parse_qs(body.decode()))
        if self.token and request.headers.get("Authorization") != f"Bearer {self.token}":
            return refusal(401, "NotAuthorizedException", "who are you")
        if path.startswith("/v1/config") and self.prefix:
            asked = parse_qs(urlsplit(path).query).get("warehouse")
            if asked != [self.warehouse]:
                return refusal(400, "BadRequestException", f"no warehouse {asked}")
            return plain({"defaults": {}, "overrides": {"prefix": self.prefix}})
        if self.prefix:
            if not path.startswith(f"/v1/{self.prefix}/"):
                return refusal(404, "NoSuchWarehouseException", path)
            path = path.replace(f"/{self.prefix}", "", 1)
        if method == "POST" and "/tables/" in path:
            return self._commit(path, body)
        return self.backend(method, path, body)

    def _token(self, asked: Mapping[str, list[str]]) -> Answer:
        credential = f"{asked.get('client_id', [''])[0]}:{asked.get('client_secret', [''])[0]}"
        if credential != self.credential or asked.get("scope") != [self.scope]:
            said = {"error": "invalid_client", "error_description": f"not {credential}"}
            return 401, json.dumps(said).encode()
        return plain({"access_token": self.token, "token_type": "bearer", "expires_in": 3600})

    def _commit(self, path: str, body: bytes) -> Answer | None:
        self.commits += 1
        if self.before is not None:
            self.before()
        fault = self.faults.pop(0) if self.faults else None
        if fault == UNDONE:
            return refusal(500, "InternalServerError", "nobody knows")
        if fault == BUSY:
            return refusal(503, "ServiceUnavailableException", "come again")
        if fault == CONFLICT:
            return refusal(409, "CommitFailedException", "somebody was quicker")
        answer = self.backend("POST", path, body)
        if fault == TWICE:
            answer = self.backend("POST", path, body)
        if fault == LOST:
            return refusal(504, "GatewayTimeout", "no answer in time")
        return None if fault == CUT else answer


def forward(uri: str) -> Backend:
    """Forward requests to a server that listens there."""

    def backend(method: str, path: str, body: bytes) -> Answer:
        parts = urlsplit(uri)
        connection = http.client.HTTPConnection(str(parts.hostname), parts.port, timeout=60)
        try:
            connection.request(method, path, body, {"Content-Type": "application/json"})
            answer = connection.getresponse()
            return answer.status, answer.read()
        finally:
            connection.close()

    return backend


def in_sqlite(folder: Path) -> Backend:
    """A backend over pyiceberg's catalog, kept in that folder."""
    catalog = SqlCatalog("rest", uri=f"sqlite:///{folder}/rest.db", warehouse=f"file://{folder}")
    turn = threading.Lock()

    def backend(method: str, path: str, body: bytes) -> Answer:
        with turn:
            return _in_sqlite(catalog, method, urlsplit(path).path, body)

    return backend


def _flat(levels: str) -> str:
    """The one level that a namespace has in SQLite."""
    return levels.replace("\x1f", "-")


def _in_sqlite(catalog: SqlCatalog, method: str, path: str, body: bytes) -> Answer:
    match [unquote(part) for part in path.strip("/").split("/")][1:]:
        case ["config"]:
            return plain({"defaults": {}, "overrides": {}})
        case ["namespaces"]:
            made = json.loads(body)["namespace"]
            catalog.create_namespace(_flat("\x1f".join(made)))
            return plain({"namespace": made, "properties": {}})
        case ["namespaces", name]:
            there = catalog.namespace_exists(_flat(name))
            known = {"namespace": name.split("\x1f"), "properties": {}}
            return plain(known) if there else refusal(404, "NoSuchNamespaceException", name)
        case ["namespaces", name, "tables"]:
            return _staged(catalog, name, CreateTableRequest.model_validate_json(body))
        case ["namespaces", name, "tables", table]:
            identifier = (_flat(name), table)
            try:
                if method == "POST":
                    return _committed(catalog, identifier, body)
                return _table(catalog.load_table(identifier))
            except NoSuchTableError:
                return refusal(404, "NoSuchTableException", table)
            except CommitFailedException as error:
                return refusal(409, "CommitFailedException", str(error))
    return refusal(404, "NotFound", path)


def _staged(catalog: SqlCatalog, namespace: str, asked: CreateTableRequest) -> Answer:
    if not asked.stage_create:
        return refusal(406, "UnsupportedOperationException", "nobody here creates at once")
    return _table(
        catalog._create_staged_table(
            (_flat(namespace), asked.name),
            asked.table_schema,
            asked.location,
            asked.partition_spec or UNPARTITIONED_PARTITION_SPEC,
            asked.write_order or UNSORTED_SORT_ORDER,
            asked.properties,
        )
    )


def _committed(catalog: SqlCatalog, identifier: tuple[str, ...], body: bytes) -> Answer:
    asked = CommitTableRequest.model_validate_json(body)
    table: Any = SimpleNamespace(name=lambda: identifier)
    done = catalog.commit_table(table, asked.requirements, asked.updates)
    return 200, done.model_dump_json(by_alias=True).encode()


def _table(table: Any) -> Answer:
    metadata = json.loads(table.metadata.model_dump_json(by_alias=True))
    return plain({"metadata-location": table.metadata_location, "metadata": metadata, "config": {}})


def plain(said: Mapping[str, Any]) -> Answer:
    return 200, json.dumps(said).encode()


def refusal(status: int, kind: str, message: str) -> Answer:
    """An error response as in the specification."""
    error = {"message": message, "type": kind, "code": status}
    return status, json.dumps({"error": error}).encode()
