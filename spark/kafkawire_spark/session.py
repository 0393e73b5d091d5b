"""A Spark session for the commands: the active one, or a new one without console output.

The machine must have a Java; pip installs everything else. The master and all settings are given by
the caller or by `spark-submit`.
"""

from __future__ import annotations

import os
import re
import shutil
import signal
import subprocess
import sys
import threading
import warnings
from collections.abc import Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager, nullcontext, suppress
from pathlib import Path
from typing import TYPE_CHECKING

from kafkawire.progress import Progress, phase, silent
from kafkawire.reading.model.source import InvalidInput, SourceError, Unreachable
from kafkawire_spark import register

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


# Spark starts Java with an incubator module, and no option of either suppresses Java's warning. So
# Java, and the processes it starts, get a pipe as standard error, and a thread copies the rest.
LEFT_OUT = b"WARNING: Using incubator modules: jdk.incubator.vector"
READ_BYTES = 1 << 16
STDERR = 2


@contextmanager
def without_incubator_warning() -> Iterator[None]:
    """Have the processes started in the block write to a filtered standard error as long as they
    live; afterwards this process writes to its own again."""
    sys.stderr.flush()
    own = os.dup(STDERR)
    reader, writer = os.pipe()
    os.dup2(writer, STDERR)
    os.close(writer)
    copying = threading.Thread(target=_copy, args=(reader, own), name="output of Java", daemon=True)
    copying.start()
    try:
        yield
    finally:
        sys.stderr.flush()
        os.dup2(own, STDERR)


def _copy(reader: int, to: int) -> None:
    """Copy all lines but LEFT_OUT until every process has closed its end."""
    held, at_start = b"", True
    with suppress(OSError):  # this process's own standard error is closed
        while chunk := os.read(reader, READ_BYTES):
            out = bytearray()
            lines = (held + chunk).splitlines(keepends=True)
            held = b""
            for line in lines:
                ends = line.endswith((b"\n", b"\r"))
                if at_start and line.rstrip() == LEFT_OUT and ends:
                    continue
                if at_start and not ends and LEFT_OUT.startswith(line):
                    held = line  # the last one: it may become the warning
                    continue
                out += line
                at_start = ends
            os.write(to, out)
        os.write(to, held)
    os.close(reader)
    os.close(to)


STARTING = "starting Spark"
JAVA_MIN = 17
JAVA_ANSWERS_WITHIN_S = 60.0  # a cold disk under load; usually 0.1
_INSTALL = (
    f"install one (Debian, Ubuntu: apt-get install openjdk-{JAVA_MIN}-jre-headless) "
    "or set JAVA_HOME to where it is"
)
_LOGGING = Path(__file__).with_name("log4j2.properties")

DEFAULTS: dict[str, str] = {
    "spark.ui.enabled": "false",
    "spark.ui.showConsoleProgress": "false",
    "spark.sql.session.timeZone": "UTC",
    # Workers fork from a process that has imported their modules (kafkawire_spark.daemon).
    "spark.python.daemon.module": "kafkawire_spark.daemon",
    # Rows of a batch from Spark to Python: 10,000, the default, is a MB of small records.
    "spark.sql.execution.arrow.maxRecordsPerBatch": "65536",
}
"""Default settings of sessions started here."""
_MASTERS = "local[N], spark://HOST:PORT, yarn and k8s://URL"
_OTHER_MASTERS = re.compile(r"local(\[(\d+|\*)(, *\d+)?\])?$|local-cluster\[|yarn$|k8s://")
_CAUSE = re.compile(r"^(?:Caused by)?: (?:[\w.$]+: )?(.+)$", re.MULTILINE)
_LOCAL = {"spark.driver.host": "127.0.0.1", "spark.driver.bindAddress": "127.0.0.1"}


class SessionError(SourceError):
    """Spark cannot be started."""


class InvalidSetup(SessionError, InvalidInput):
    """The master is wrong, or Java is missing: one sentence says how to install it."""


def open_session(
    master: str = "local[*]",
    *,
    conf: Mapping[str, str] | None = None,
    app_name: str = "kafkawire",
    progress: Progress = silent,
) -> SparkSession:
    """Return the active session unchanged, or a new one, with `format("kafkawire")` registered.

    `master` and `app_name` are used if neither `conf` nor spark-submit sets them. The caller stops
    a new session. Raises SessionError, Unreachable.
    """
    with warnings.catch_warnings():
        # Spark warns of pandas 3 if it is installed; it is not used here.
        warnings.filterwarnings("ignore", "PySpark does not yet fully support", FutureWarning)
        from pyspark.sql import SparkSession

        session = SparkSession.getActiveSession()
        if session is None:
            with phase(progress, STARTING):
                session = _start(master, app_name, dict(conf or {}))
    register(session)
    return session


def sentence(failure: BaseException) -> str:
    """Return our sentence from Spark's error for a failed Python worker, which has a line with its
    class, after Spark's words or the traceback."""
    found = re.findall(r"^(?:.*: )?kafkawire(?:_spark)?\.[\w.]+: (.+)$", str(failure), re.MULTILINE)
    return found[-1].strip() if found else str(failure).strip().partition("\n")[0]


def java_cause(failure: BaseException) -> str:
    """Return the last cause in the trace of an error of Java, whose first line has no details; ""
    if there is none."""
    causes = _CAUSE.findall(str(failure))
    return causes[-1] if causes else ""


def _start(master: str, app_name: str, conf: dict[str, str]) -> SparkSession:
    from pyspark import SparkConf, SparkContext
    from pyspark.sql import SparkSession

    submitted = "PYSPARK_GATEWAY_PORT" in os.environ  # spark-submit's JVM already runs
    given: dict[str, str] = {}
    if submitted:
        # otherwise Spark does not return the settings of spark-submit
        SparkContext._ensure_initialized()
        given = dict(SparkConf().getAll())
    else:
        find_java()
    os.environ.setdefault("PYSPARK_PYTHON", conf.get("spark.pyspark.python", sys.executable))
    settings = {"spark.master": master, "spark.app.name": app_name, **DEFAULTS, **given, **conf}
    if settings["spark.master"].startswith("local"):
        settings = _LOCAL | settings
    if not submitted:
        check_master(settings["spark.master"])
        java_options = f"{settings.get('spark.driver.extraJavaOptions', '')} {_quiet()}"
        settings["spark.driver.extraJavaOptions"] = java_options.strip()
    builder = SparkSession.builder
    for key, value in settings.items():
        builder = builder.config(key, value)
    try:
        with _defer_interrupt(), _quiet_start():
            return builder.getOrCreate()
    except KeyboardInterrupt:
        begun = SparkSession.getActiveSession()
        if begun is not None:
            begun.stop()
        raise
    except Exception as failure:  # errors of py4j and Spark have no common class
        reason = java_cause(failure) or str(failure).strip().partition("\n")[0]
        raise SessionError(
            f"Spark does not start with master {settings['spark.master']!r}: {reason}"
        ) from failure


def check_master(master: str) -> None:
    """Check what Spark reports after a Java trace, or after 90 seconds. Raises InvalidSetup,
    Unreachable."""
    from kafkawire.client.address import split_address
    from kafkawire.client.connection import reach

    standalone = master.removeprefix("spark://").split(",") if master.startswith("spark:") else []
    addresses = [found[1:] for each in standalone if (found := split_address(each))]
    if len(addresses) < len(standalone) or not (standalone or _OTHER_MASTERS.match(master)):
        raise InvalidSetup(f"Spark's master {master!r} is none of {_MASTERS}")
    try:
        reach(addresses)
    except OSError as error:
        reason = error.strerror or str(error)
        raise Unreachable(f"cannot connect to Spark's master at {master}: {reason}") from None


@contextmanager
def _defer_interrupt() -> Iterator[None]:
    """Defer Ctrl-C to the end of the block: a Java process interrupted during its start would never
    end."""
    if threading.current_thread() is not threading.main_thread():
        yield  # only the main thread gets signals
        return
    come: list[int] = []

    def note(number: int, frame: object) -> None:
        come.append(number)

    before = signal.signal(signal.SIGINT, note)
    try:
        yield
    finally:
        # otherwise Spark has set its handler, which cancels jobs
        if signal.getsignal(signal.SIGINT) is note:
            signal.signal(signal.SIGINT, before)
    if come:
        raise KeyboardInterrupt


def _quiet_start() -> AbstractContextManager[None]:
    """Return the context in which Java is started, if this process has none yet."""
    from pyspark import SparkContext

    if SparkContext._gateway is not None or "PYSPARK_GATEWAY_PORT" in os.environ:
        return nullcontext()
    return without_incubator_warning()


def _quiet() -> str:
    """Return options of Java that suppress output below ERROR from the start."""
    return f"-Dlog4j2.configurationFile={_LOGGING.as_uri()}"


def find_java() -> str:
    """Return the Java that Spark will use: JAVA_HOME's, else the one on PATH. Raises
    InvalidSetup."""
    home = os.environ.get("JAVA_HOME")
    if home:
        java = str(Path(home, "bin", "java"))
        if not os.access(java, os.X_OK):
            raise InvalidSetup(
                f"Spark needs Java {JAVA_MIN} or newer, and JAVA_HOME={home} has no bin/java: "
                f"{_INSTALL}"
            )
    else:
        java = shutil.which("java") or ""
        if not java:
            raise InvalidSetup(
                f"Spark needs Java {JAVA_MIN} or newer, and there is no java on PATH: {_INSTALL}"
            )
    version = _version(java)
    if version < JAVA_MIN:
        what = f"is Java {version}" if version else "does not say its version"
        raise InvalidSetup(f"Spark needs Java {JAVA_MIN} or newer, and {java} {what}: {_INSTALL}")
    return java


def _version(java: str) -> int:
    """Return the major version: 8 of "1.8.0_292", 17 of "17.0.15"; 0 if unknown."""
    command = [java, "-version"]
    try:
        done = subprocess.run(
            command, capture_output=True, text=True, timeout=JAVA_ANSWERS_WITHIN_S, check=False
        )
    except (OSError, subprocess.TimeoutExpired):
        return 0
    found = re.search(r'version "(?:1\.)?(\d+)', done.stderr + done.stdout)
    return int(found.group(1)) if found else 0
