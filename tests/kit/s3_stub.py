"""An HTTP server whose S3 responses a test controls, for responses that MinIO cannot be made to
give."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

XML = '<?xml version="1.0"?><Error><Code>{}</Code><Message>{}</Message></Error>'


@dataclass
class Reply:
    """A response. `length`: the Content-Length it claims; `hold`: it waits for this before the
    second half of the body; after a body that is too short the connection is closed."""

    status: int = 200
    body: bytes = b""
    headers: dict[str, str] = field(default_factory=dict)
    length: int | None = None
    hold: threading.Event | None = None


def error(status: int, code: str) -> Reply:
    """An error response as S3 words it."""
    return Reply(status, XML.format(code, "a text").encode(), {"Content-Type": "application/xml"})


def ranged(body: bytes, start: int, total: int, **more: Any) -> Reply:
    """A part of an object of `total` bytes."""
    length = more.get("length") or len(body)
    span = f"bytes {start}-{start + length - 1}/{total}"
    return Reply(206, body, {"Content-Range": span, "ETag": '"e"'}, **more)


Answerer = Callable[[str, str, dict[str, str]], Reply]


@dataclass
class Stub:
    """`answer(method, path, headers)` decides on the response; `asked`: the requests received."""

    endpoint: str
    answer: Answerer
    asked: list[tuple[str, str, dict[str, str]]] = field(default_factory=list)


@contextmanager
def serving(answer: Answerer) -> Iterator[Stub]:
    """Run a server on a free port until the context ends."""
    stub = Stub("", answer)

    class Handler(BaseHTTPRequestHandler):
        # Each response is two writes: the second would wait 40 ms for the ACK of the first.
        disable_nagle_algorithm = True

        protocol_version = "HTTP/1.1"

        def handle_one_request(self) -> None:
            try:
                super().handle_one_request()
            except ConnectionError:
                self.close_connection = True

        def any(self) -> None:
            self.rfile.read(int(self.headers.get("Content-Length", "0")))
            headers = {name.lower(): value for name, value in self.headers.items()}
            stub.asked.append((self.command, self.path, headers))
            reply = stub.answer(self.command, self.path, headers)
            self.send_response(reply.status)
            for name, value in reply.headers.items():
                self.send_header(name, value)
            length = len(reply.body) if reply.length is None else reply.length
            self.send_header("Content-Length", str(length))
            self.end_headers()
            if self.command != "HEAD":
                half = len(reply.body) // 2 if reply.hold else len(reply.body)
                self.wfile.write(reply.body[:half])
                self.wfile.flush()
                if reply.hold is not None:
                    reply.hold.wait(20)
                    self.wfile.write(reply.body[half:])
                self.close_connection = self.close_connection or length != len(reply.body)

        do_GET = do_PUT = do_POST = do_HEAD = do_DELETE = any

        def log_message(self, format: str, *args: Any) -> None:
            return

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    server.daemon_threads = True
    stub.endpoint = f"http://127.0.0.1:{server.server_address[1]}"
    thread = threading.Thread(target=server.serve_forever, args=(0.02,))
    thread.start()
    try:
        yield stub
    finally:
        server.shutdown()
        thread.join()
        server.server_close()
