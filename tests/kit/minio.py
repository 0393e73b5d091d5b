"""MinIO for the tests: how it is obtained, and one server per worker of a test run.

From a container where a docker engine responds, else a program `minio` on PATH, else one that was
built with the Go toolchain and is kept in $KAFKAWIRE_TEST_HOME (~/.cache/kafkawire-tests). `python
-m tests.kit.minio` builds that one where there is no other, once, in some minutes; `make test`
calls it. Where MinIO cannot be had, tests are skipped, and fail where CI is set.

Fixtures: `minio` (session), `tier_url` (a bucket of the test's own), `encrypting_minio` (a server
with a key for encrypting objects, for the tests of a module).
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import shutil
import signal
import subprocess
import sys
import time
import urllib.request
import uuid
from base64 import b64encode
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from types import MappingProxyType
from typing import Any

import pytest

from tests.kit.ports import free_port

MODULE = "github.com/minio/minio@v0.0.0-20260212201848-7aac2a2c5b7c"
IMAGE = "minio/minio"
USER, SECRET = "kafkawire-tests", "kafkawire-tests-secret"
KMS_KEY = "kafkawire-key"
KMS = {"MINIO_KMS_SECRET_KEY": f"{KMS_KEY}:{b64encode(bytes(range(32))).decode()}"}
"""Settings of a server that encrypts objects."""
READY_WITHIN_S = 60.0
BUILT_WITHIN_S = 1800.0
PORT = 9000
DOCKER_SOCKET = "/var/run/docker.sock"


@dataclass(frozen=True)
class Source:
    """How to start a server. `program`: empty for a container."""

    words: str
    program: str = ""


@dataclass(frozen=True)
class Minio:
    """A running server. `data`: its folder; None for a container."""

    endpoint: str
    data: Path | None = None

    @property
    def environ(self) -> dict[str, str]:
        """The environment for boto3, without any setting of the machine's owner."""
        return {
            "AWS_ENDPOINT_URL": self.endpoint,
            "AWS_ACCESS_KEY_ID": USER,
            "AWS_SECRET_ACCESS_KEY": SECRET,
            "AWS_DEFAULT_REGION": "us-east-1",
            "AWS_CONFIG_FILE": os.devnull,
            "AWS_SHARED_CREDENTIALS_FILE": os.devnull,
            "AWS_EC2_METADATA_DISABLED": "true",
        }

    def client(self) -> Any:
        """A plain boto3 client, for inspecting the buckets."""
        import boto3

        return boto3.client(
            "s3",
            endpoint_url=self.endpoint,
            aws_access_key_id=USER,
            aws_secret_access_key=SECRET,
            region_name="us-east-1",
        )


@cache
def source() -> Source | None:
    """How a server would be started; None if it cannot be."""
    if _engine_answers():
        return Source(f"a container of {IMAGE}")
    on_path = shutil.which("minio")
    if on_path:
        return Source(f"{on_path} (on PATH)", on_path)
    if _is_built():
        return Source(f"{_built()} (built from {MODULE})", str(_built()))
    return None


def _engine_answers() -> bool:
    if not (os.environ.get("DOCKER_HOST") or os.path.exists(DOCKER_SOCKET)):
        return False
    from testcontainers.core.docker_client import DockerClient

    try:
        return bool(DockerClient(timeout=10).client.ping())
    except Exception:  # there is no usable docker engine, whatever the reason
        return False


def _built() -> Path:
    home = os.environ.get("KAFKAWIRE_TEST_HOME") or Path.home() / ".cache" / "kafkawire-tests"
    return Path(home) / "minio" / "minio"


def _is_built() -> bool:
    version = _built().with_suffix(".version")
    return _built().is_file() and version.is_file() and version.read_text() == MODULE


def build() -> str:
    """Build MinIO where there is no other and Go is installed; return a description of the result.
    Concurrent builds wait for each other, and the program is installed atomically."""
    found = source()
    if found is not None:
        return found.words
    if shutil.which("go") is None:
        return "nowhere to be had: no docker engine, no minio on PATH, and no Go to build one with"
    folder = _built().parent
    folder.mkdir(parents=True, exist_ok=True)
    with (folder / "lock").open("w") as turn:
        fcntl.flock(turn, fcntl.LOCK_EX)
        if not _is_built():
            print(f"building MinIO in {folder}, once; this takes some minutes", flush=True)
            _install(folder)
    return f"{_built()} (built from {MODULE})"


def _install(folder: Path) -> None:
    """Download and compile. Raises CalledProcessError, TimeoutExpired."""
    new = folder / f"new.{os.getpid()}"
    jobs = str(max(1, (os.cpu_count() or 1) // 2))
    environ = {
        **os.environ,
        "GOBIN": str(new),
        "GOFLAGS": f"-p={jobs} -buildvcs=false",
        "CGO_ENABLED": "0",
    }
    command = ["go", "install", "-trimpath", "-tags", "kqueue", "-ldflags", "-s -w", MODULE]
    try:
        subprocess.run(command, check=True, env=environ, timeout=BUILT_WITHIN_S)
        (new / "minio").rename(_built())
        _built().with_suffix(".version").write_text(MODULE)
    finally:
        shutil.rmtree(new, ignore_errors=True)


@contextlib.contextmanager
def running(folder: Path, settings: Mapping[str, str] = MappingProxyType({})) -> Iterator[Minio]:
    """Run a server with its data in a folder until the context ends; `settings`: variables of its
    environment. Skip, or fail where CI is set, if there is none."""
    found = source()
    if found is None:
        message = "there is no MinIO: `make test` builds one where there is Go or docker"
        if os.environ.get("CI"):
            pytest.fail(message)
        pytest.skip(message)
    with (
        _process(found.program, folder, settings) if found.program else _container(settings)
    ) as minio:
        yield minio


@contextlib.contextmanager
def _container(settings: Mapping[str, str]) -> Iterator[Minio]:
    from testcontainers.core.container import DockerContainer

    container = (
        DockerContainer(IMAGE)
        .with_envs(**settings)
        .with_env("MINIO_ROOT_USER", USER)
        .with_env("MINIO_ROOT_PASSWORD", SECRET)
        .with_command("server /data")
        .with_exposed_ports(PORT)
    )
    with container:
        host, port = container.get_container_host_ip(), container.get_exposed_port(PORT)
        minio = Minio(f"http://{host}:{port}")
        assert _answers_in_time(minio.endpoint), "MinIO in its container does not answer"
        yield minio


@contextlib.contextmanager
def _process(program: str, folder: Path, settings: Mapping[str, str]) -> Iterator[Minio]:
    folder.mkdir(parents=True, exist_ok=True)
    for _ in range(3):  # another process may take the port in between
        endpoint = f"127.0.0.1:{free_port()}"
        with (folder / "server.log").open("wb") as log:
            child = subprocess.Popen(
                [program, "server", "--quiet", "--address", endpoint,
                 "--config-dir", str(folder / "config"), "--certs-dir", str(folder / "certs"),
                 str(folder / "data")],
                stdout=log, stderr=subprocess.STDOUT, stdin=subprocess.DEVNULL,
                preexec_fn=_die_with_parent if sys.platform == "linux" else None,
                env={**os.environ, "MINIO_ROOT_USER": USER, "MINIO_ROOT_PASSWORD": SECRET,
                     "MINIO_BROWSER": "off", "MINIO_UPDATE": "off", **settings},
            )  # fmt: skip
        try:
            if _answers_in_time(f"http://{endpoint}", child):
                yield Minio(f"http://{endpoint}", folder / "data")
                return
        finally:
            child.kill()  # its data is not needed any more
            child.wait()
    raise AssertionError("MinIO does not start:\n" + (folder / "server.log").read_text()[-3000:])


def _die_with_parent() -> None:
    """Ask Linux to end this child if the test run is killed."""
    import ctypes

    ctypes.CDLL(None).prctl(1, signal.SIGKILL)  # PR_SET_PDEATHSIG


def _answers_in_time(endpoint: str, child: subprocess.Popen[bytes] | None = None) -> bool:
    """Whether the server is healthy in time; False if its process ends before."""
    end = time.monotonic() + READY_WITHIN_S
    while time.monotonic() < end and (child is None or child.poll() is None):
        ready = f"{endpoint}/minio/health/ready"
        with contextlib.suppress(OSError), urllib.request.urlopen(ready, timeout=5):
            return True  # an HTTP error would be an OSError too
        time.sleep(0.05)
    return False


@pytest.fixture(scope="session")
def minio(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Minio]:
    """The MinIO server of this worker of the run."""
    with running(tmp_path_factory.mktemp("minio")) as server:
        yield server


@pytest.fixture(scope="module")
def encrypting_minio(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Minio]:
    """A MinIO server with a key for encrypting objects."""
    with running(tmp_path_factory.mktemp("minio-kms"), KMS) as server:
        yield server


@pytest.fixture
def encrypting_tier(encrypting_minio: Minio, monkeypatch: pytest.MonkeyPatch) -> str:
    """As `tier_url`, on a server with a key."""
    return new_tier(encrypting_minio, monkeypatch)


@pytest.fixture
def tier_url(minio: Minio, monkeypatch: pytest.MonkeyPatch) -> str:
    """A tier in a bucket that no other test uses and that does not exist yet; the environment has
    its credentials."""
    return new_tier(minio, monkeypatch)


def new_tier(minio: Minio, monkeypatch: pytest.MonkeyPatch) -> str:
    """Return the URL of a new tier, whose credentials are put into the environment."""
    for name, value in minio.environ.items():
        monkeypatch.setenv(name, value)
    return f"s3://test-{uuid.uuid4().hex[:16]}/tier"


def main() -> None:
    """Build MinIO. A failed build is not an error: the tests that need it report that
    themselves."""
    try:
        print(f"MinIO for the tests: {build()}")
    except (OSError, subprocess.SubprocessError) as failure:
        print(f"MinIO for the tests cannot be built: {failure}", file=sys.stderr)


if __name__ == "__main__":
    main()
