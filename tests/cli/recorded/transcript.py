"""Run the commands of a transcript and print it again with what they print now.

A transcript is a text file. The kind of a line is its first character:

- `#`: a comment. `# <NAME>: REGEX` replaces what the expression (its first group, if it has one)
  finds in the outputs with <NAME>, in addition to PLACEHOLDERS.
- `$`: a command. `kafkawire ...` runs in this process, other commands in `sh`.
- two spaces: a line of stdout; `!`: a line of stderr; `[exit N]`: the exit code, if not 0.

`kafkawire serve ... &` starts a broker with the data folder `data`, and later commands connect to
it. Another command with `&` runs in the background once it has printed a line. `kill %N` ends
background command N. In `A | kafkawire ...` the input is the output of A. The output of
`until ...; do ...; done` is left out.
"""

from __future__ import annotations

import logging
import os
import re
import shlex
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, chdir, contextmanager
from datetime import UTC, datetime, timedelta
from functools import partial
from itertools import pairwise, takewhile
from pathlib import Path

from typer.testing import CliRunner

from kafkawire.cli.app import app
from kafkawire.testing.process import BrokerProcess
from tests.kit.commands import NOWHERE
from tests.kit.json_schema import check_document, check_lines
from tests.kit.waiting import WITHIN_S

FOLDER = Path(__file__).parent
ROOT = FOLDER.parent.parent.parent
PLACEHOLDERS = (
    ("server", r"127\.0\.0\.1:\d{5}\b"),
    ("uuid", r"\b[0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12}\b"),
    ("id", r"(?<![\w/.-])(?=[\w-]*[A-Z])(?=[\w-]*[a-z])[\w-]{21}[AQgw](?![\w/.-])"),
)
"""Names and regular expressions of texts that differ between two runs, in addition to the folder
and times from yesterday to tomorrow. An id is 16 bytes in base64."""
TIME = r"\b(?:{})[T ]\d\d:\d\d(?::\d\d)?(?:\.\d+)?(?:Z|\+00:00)?"
RECORDS = "orders.jsonl"
"""A file with five records, which is in the working folder."""
SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
RULE = re.compile(r"# <([\w ]+)>: (.+)")
DASHES = re.compile(r"-+(?:  -+)*")


def find_transcripts() -> dict[str, Path]:
    """Return the transcripts by their names."""
    return {path.stem: path for path in sorted(FOLDER.glob("*.txt"))}


def read_commands(text: str) -> list[str]:
    """Return the commands of a transcript."""
    return [line[2:] for line in text.splitlines() if line.startswith("$ ")]


def run_transcript(text: str, folder: Path) -> str:
    """Return the transcript with what its commands print now. `folder`: an empty working folder."""
    lines = text.splitlines()
    own = [(match[1], match[2]) for line in lines if (match := RULE.fullmatch(line))]
    with Session(folder, [*own, *PLACEHOLDERS]) as session:
        written = []
        for before, line in pairwise(["", *lines]):
            if line.startswith(("$ ", "#")):
                written += [] if before.startswith("#") else [""]
                written.append(line)
            if line.startswith("$ "):
                try:
                    written += session.run(line[2:]).splitlines()
                except BaseException as error:
                    error.add_note(line)
                    raise
    return "\n".join(written).lstrip("\n") + "\n"


class Session(ExitStack):
    """A shell in a working folder, with its brokers and background commands."""

    def __init__(self, folder: Path, placeholders: Sequence[tuple[str, str]]) -> None:
        super().__init__()
        self._folder = folder
        now = datetime.now(UTC)
        days = [f"{now + timedelta(days):%Y-%m-%d}" for days in (-1, 0, 1)]
        known = [("folder", re.escape(str(folder))), ("time", TIME.format("|".join(days)))]
        self._placeholders = [*known, *placeholders]
        self._server = NOWHERE
        self._jobs: list[ExitStack] = []
        shutil.copy(FOLDER / RECORDS, folder)
        self.enter_context(chdir(folder))

    def run(self, command: str) -> str:
        """Run a command and return what it printed, as lines of a transcript."""
        if command.endswith(" &"):
            return self._start(command.removesuffix(" &"))
        if command.startswith("kill %"):
            self._jobs[int(command.removeprefix("kill %")) - 1].close()
            return ""
        code, out, err = self._execute(command)
        if command.startswith("until "):
            return ""  # as often as it was repeated
        return "".join(self._render(code, out, err))

    @property
    def _environ(self) -> dict[str, str]:
        return {
            "COLUMNS": "80",
            "KAFKAWIRE_SERVER": self._server,
            "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}",
            "PYTHONPATH": str(ROOT),
        }

    def _start(self, command: str) -> str:
        job = self.enter_context(ExitStack())
        self._jobs.append(job)
        words = shlex.split(command)
        if words[:2] == ["kafkawire", "serve"]:
            broker = BrokerProcess(self._folder / "data", arguments=words[2:])
            job.enter_context(broker)
            self._server = broker.bootstrap
        else:
            job.enter_context(self._run_in_background(command))
        return ""

    @contextmanager
    def _run_in_background(self, command: str) -> Iterator[None]:
        environ = {**os.environ, **self._environ}
        with subprocess.Popen(
            shlex.split(command), env=environ, stdin=subprocess.PIPE, stdout=subprocess.PIPE
        ) as process:
            try:
                assert process.stdout is not None
                assert process.stdout.readline(), f"{command}: ended without a line"
                yield
            finally:
                process.terminate()

    def _execute(self, command: str) -> tuple[int, str, str]:
        """Return exit code, stdout and stderr of a command."""
        before, piped, own = command.rpartition(" | kafkawire ")
        if not piped and (" | " in command or not command.startswith("kafkawire ")):
            done = self._run_in_shell(command)
            return done.returncode, done.stdout.decode(), done.stderr.decode()
        given = self._run_in_shell(before).stdout if piped else b""
        own = own.removeprefix("kafkawire ").replace("$KAFKAWIRE_SERVER", self._server)
        with _restore_process():
            result = CliRunner(env=self._environ).invoke(app, shlex.split(own), input=given)
        if result.exception is not None and not isinstance(result.exception, SystemExit):
            raise result.exception
        if "--json" in own and result.stdout.startswith(("[", "{")):
            check_lines(result.stdout) if "\n{" in result.stdout else check_document(result.stdout)
        return result.exit_code, result.stdout, result.stderr

    def _run_in_shell(self, command: str) -> subprocess.CompletedProcess[bytes]:
        environ = {**os.environ, **self._environ}
        words = ["sh", "-c", command]
        return subprocess.run(words, env=environ, capture_output=True, timeout=WITHIN_S)

    def _render(self, code: int, out: str, err: str) -> Iterator[str]:
        for mark, text in ((" ", out), ("!", err)):
            for line in self._replace(text).splitlines():
                yield f"{mark} {line}".rstrip() + "\n"
        if code:
            yield f"[exit {code}]\n"

    def _replace(self, text: str) -> str:
        """Replace what varies, and align the tables that have a replaced cell."""
        lines = text.splitlines()
        replaced = [self._replace_in_line(line) for line in lines]
        for at, dashes in enumerate(lines):
            if at and DASHES.fullmatch(dashes):
                rows = list(takewhile(partial(_is_row, dashes), lines[at + 1 :]))
                table = slice(at - 1, at + 1 + len(rows))
                replaced[table] = self._replace_in_table(lines[table])
        return "\n".join(replaced)

    def _replace_in_line(self, line: str) -> str:
        for name, regex in self._placeholders:
            line = re.sub(regex, partial(_mark, name), line)
        return line

    def _replace_in_table(self, lines: list[str]) -> list[str]:
        """Replace what varies in the cells of a table, of which the second line has the dashes."""
        starts = [match.start() for match in re.finditer("-+", lines[1])]
        spans = [*pairwise([*starts, max(map(len, lines)) + 2])]
        cells = [[line[start:end].strip() for start, end in spans] for line in lines]
        rows = [[self._replace_in_line(cell) for cell in row] for row in cells]
        if rows == cells:
            return lines
        rows[1] = [""] * len(starts)
        widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
        rows[1] = ["-" * width for width in widths]
        return [
            "  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip()
            for row in rows
        ]


@contextmanager
def _restore_process() -> Iterator[None]:
    """Remove what a command leaves in the process: handlers of log lines, which write to a file
    that is closed with its run, and handlers of signals, which belong to a closed event loop."""
    root = logging.getLogger()
    handlers, level = [*root.handlers], root.level
    before = {number: signal.getsignal(number) for number in SIGNALS}
    try:
        yield
    finally:
        root.handlers[:] = handlers
        root.setLevel(level)
        for number, handler in before.items():
            signal.signal(number, handler)


def _is_row(dashes: str, line: str) -> bool:
    """Return whether a line can be a row of the table with these dashes under its titles."""
    blank = all(char == " " or dash == "-" for char, dash in zip(line, dashes, strict=False))
    return blank and len(line) <= len(dashes)


def _mark(name: str, match: re.Match[str]) -> str:
    """Return the text of a match with the placeholder for its first group, or for all of it."""
    if not match.groups():
        return f"<{name}>"
    start, end = match.start(1) - match.start(), match.end(1) - match.start()
    return f"{match[0][:start]}<{name}>{match[0][end:]}"
