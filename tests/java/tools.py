"""Apache Kafka's command line tools, run by `programs/ToolServer.java` in one JVM for all calls:
starting one for each would take a second or two of CPU time every time."""

from __future__ import annotations

import os
import select
import struct
import subprocess
import time
from dataclasses import dataclass

LENGTH = struct.Struct(">i")


@dataclass
class Done:
    """How a tool ended."""

    code: int
    stdout: str
    stderr: str


def run_alone(java: list[str], main: str, arguments: list[str], timeout_s: float) -> Done:
    """Run the main method of a class in a JVM of its own, for what prints in a shutdown hook."""
    done = subprocess.run(
        [*java, main, *arguments], capture_output=True, text=True, timeout=timeout_s, check=False
    )
    return Done(done.returncode, done.stdout, done.stderr)


class ToolServer:
    """The JVM; started by the first call, and again after a call that failed."""

    def __init__(self, command: list[str]) -> None:
        self._command = command
        self._child: subprocess.Popen[bytes] | None = None

    def run(self, main: str, arguments: list[str], data: str, timeout_s: float) -> Done:
        """Run the main method of a class. Fails when it does not end in time."""
        if self._child is None:
            self._child = subprocess.Popen(
                self._command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, bufsize=0
            )
        assert self._child.stdin is not None
        fields = [field.encode() for field in (data, main, *arguments)]
        call = b"".join(LENGTH.pack(len(field)) + field for field in fields)
        self._child.stdin.write(LENGTH.pack(len(fields)) + call)
        end = time.monotonic() + timeout_s
        try:
            (code,) = LENGTH.unpack(self._read(LENGTH.size, end))
            stdout, stderr = self._read_field(end), self._read_field(end)
        except (TimeoutError, EOFError) as error:
            self.close()
            raise AssertionError(f"{main} {' '.join(arguments)} {error}") from error
        return Done(code, stdout, stderr)

    def _read_field(self, end: float) -> str:
        (length,) = LENGTH.unpack(self._read(LENGTH.size, end))
        return self._read(length, end).decode(errors="replace")

    def _read(self, count: int, end: float) -> bytes:
        assert self._child is not None
        assert self._child.stdout is not None
        source = self._child.stdout.fileno()
        found = b""
        while len(found) < count:
            if not select.select([source], [], [], max(0.0, end - time.monotonic()))[0]:
                raise TimeoutError("did not end in time")
            read = os.read(source, count - len(found))
            if not read:
                raise EOFError("ended the JVM of all tools")
            found += read
        return found

    def close(self) -> None:
        if self._child is not None:
            self._child.kill()
            self._child.communicate()
            self._child = None
