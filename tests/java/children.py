"""Java programs that run next to a test: started, watched, paused and killed.

Some are in `programs`, and compiled here once per version of their sources.
"""

from __future__ import annotations

import hashlib
import shutil
import signal
import subprocess
from pathlib import Path

from tests.real.members import wait_for

SOURCES = Path(__file__).parent / "programs"
COMPILED_WITHIN_S = 120.0


def compile_programs(jars: Path) -> Path:
    """Return the folder of the compiled programs. The caller holds a lock."""
    sources = sorted(path for path in SOURCES.rglob("*") if path.is_file())
    digest = hashlib.sha256(b"".join(path.read_bytes() for path in sources)).hexdigest()[:12]
    folder = jars.parent / f"programs-{digest}"
    if not folder.exists():
        new = folder.with_suffix(".new")
        shutil.rmtree(new, ignore_errors=True)
        shutil.copytree(SOURCES / "META-INF", new / "META-INF")
        command = ["javac", "-proc:none", "-cp", f"{jars}/*", "-d", str(new)]
        command += [str(path) for path in sources if path.suffix == ".java"]
        subprocess.run(command, check=True, capture_output=True, timeout=COMPILED_WITHIN_S)
        new.rename(folder)
    return folder


class JavaChild:
    """One JVM. Its output goes to `log`, over all its starts."""

    def __init__(self, command: list[str], log: Path) -> None:
        self.command = command
        self.log = log
        self._child: subprocess.Popen[bytes] | None = None

    @property
    def output(self) -> str:
        return self.log.read_text(errors="replace") if self.log.exists() else ""

    @property
    def running(self) -> bool:
        return self._child is not None and self._child.poll() is None

    def start(self) -> None:
        assert not self.running
        with self.log.open("ab") as log:
            self._child = subprocess.Popen(
                self.command, stdin=subprocess.DEVNULL, stdout=log, stderr=subprocess.STDOUT
            )

    def signal(self, number: signal.Signals) -> None:
        assert self._child is not None
        self._child.send_signal(number)

    def kill(self) -> None:
        """End it as a crash does. Does nothing when it does not run."""
        if self._child is not None:
            self._child.kill()
            self._child.wait()

    def stop(self, limit_s: float = 60.0) -> None:
        """End it with SIGTERM."""
        self.signal(signal.SIGTERM)
        self.finish(limit_s)

    def finish(self, limit_s: float = 60.0) -> int:
        """Return its exit code, when it has ended by itself."""
        wait_for(lambda: not self.running, limit_s, lambda: self.output[-4000:])
        assert self._child is not None
        return self._child.wait()

    def wait_for_line(self, text: str, count: int = 1, limit_s: float = 60.0) -> None:
        """Wait until `text` has been printed `count` times. Fails at once when the JVM ends."""

        def printed() -> bool:
            if self.output.count(text) >= count:
                return True
            assert self.running, self.output[-4000:]
            return False

        wait_for(printed, limit_s, lambda: f"no {text!r} in: {self.output[-4000:]}")
