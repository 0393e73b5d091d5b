"""Generated documents are current, and everything that the others refer to exists."""

from __future__ import annotations

import importlib.util
import re
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import yaml

from kafkawire.cli.options import parse_advertised, parse_listeners
from kafkawire.codec.configs.table import BROKER_CONFIGS, TOPIC_CONFIGS
from kafkawire.objectstore.url import parse_tier

ROOT = Path(__file__).parent.parent


def _generator() -> ModuleType:
    spec = importlib.util.spec_from_file_location("generate", ROOT / "docs" / "generate.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_generated_documents_are_current() -> None:
    documents = _generator().documents()
    assert len(documents) > 50  # the README.md of each package too
    old = [
        str(path.relative_to(ROOT))
        for path, wanted in documents.items()
        if not path.is_file() or path.read_text(encoding="utf-8") != wanted
    ]
    assert not old, "run make docs"


def _pages() -> list[Path]:
    """Every document of the repository."""
    return [*ROOT.glob("*.md"), *ROOT.glob("docs/*.md"), *(ROOT / "kafkawire").rglob("README.md")]


def test_links_have_targets() -> None:
    broken = [
        f"{page.relative_to(ROOT)}: {target}"
        for page in _pages()
        for target in re.findall(r"\]\(([^)#]+)", page.read_text(encoding="utf-8"))
        if "://" not in target and not page.parent.joinpath(target).exists()
    ]
    assert not broken


def test_paths_and_modules_in_the_documents_exist() -> None:
    """In text and in commands: `kafkawire/log/...`, `tests/...`, `python -m bench.micro.log`."""
    gone = []
    for page in _pages():
        text = page.read_text(encoding="utf-8")
        paths = re.findall(r"(?<![\w/.])((?:kafkawire|tests|bench|docs)/[\w./-]*\w)", text)
        modules = re.findall(r"python -m ((?:bench|tests|kafkawire)[\w.]*)", text)
        for path in (*paths, *(name.replace(".", "/") for name in modules)):
            if not ((ROOT / path).exists() or (ROOT / f"{path}.py").is_file()):
                gone.append(f"{page.relative_to(ROOT)}: {path}")
    assert not gone


def test_architecture_is_short_and_has_an_index() -> None:
    """Details belong into the docstrings of packages, which their README.md shows."""
    text = (ROOT / "ARCHITECTURE.md").read_text(encoding="utf-8")
    assert len(text.split()) < 3200
    index = text.partition("## Where to find")[2].partition("## Map")[0]
    for topic in (
        "Backpressure",
        "Committed offsets",
        "Deletion of S3 objects",
        "Storage provider",
    ):
        (row,) = (line for line in index.splitlines() if line.startswith(f"| {topic}"))
        assert "](" in row, topic


def test_settings_in_architecture_exist() -> None:
    """A setting that was renamed is found here, one that never existed too."""
    known = set(BROKER_CONFIGS) | set(TOPIC_CONFIGS)
    text = (ROOT / "ARCHITECTURE.md").read_text(encoding="utf-8")
    named = re.findall(r"`([a-z]+(?:\.[a-z]+)+)`", text)
    assert len(named) > 10
    assert {name for name in named if not name.endswith((".py", ".toml"))} <= known


def test_make_targets_in_the_documents_exist() -> None:
    made = set(re.findall(r"^([a-z]+):", (ROOT / "Makefile").read_text(), re.MULTILINE))
    for name in ("README.md", "CONTRIBUTING.md"):
        named = set(re.findall(r"(?:`|\$ )make ([a-z]+)", (ROOT / name).read_text()))
        assert named <= made, name


@pytest.fixture
def compose() -> Any:
    return yaml.safe_load((ROOT / "docker-compose.yml").read_text(encoding="utf-8"))


def test_compose_advertises_reachable_addresses(compose: Any) -> None:
    broker = compose["services"]["kafkawire"]
    listeners = parse_listeners(broker["environment"]["KAFKAWIRE_LISTEN"].split(","))
    reported = parse_advertised(broker["environment"]["KAFKAWIRE_ADVERTISE"].split(","), listeners)
    ports = {listener.name: listener.port for listener in listeners}
    assert all(listener.host == "0.0.0.0" for listener in listeners)
    assert reported["INSIDE"] == ("kafkawire", ports["INSIDE"])  # the service's name in the network
    published = dict(port.split(":")[1:] for port in broker["ports"])
    monitors = broker["environment"]["KAFKAWIRE_SET_METRICS_LISTENER"].rpartition(":")[2]
    assert published == {str(reported["HOST"][1]): str(ports["HOST"]), monitors: monitors}
    health = broker["environment"]["KAFKAWIRE_SERVER"]
    assert health == f"127.0.0.1:{ports['INSIDE']}"


def test_compose_stores_data_in_declared_volumes(compose: Any) -> None:
    used = [v.split(":")[0] for s in compose["services"].values() for v in s["volumes"]]
    assert sorted(used) == sorted(compose["volumes"])
    assert "minio" in compose["services"]


def test_compose_uses_its_own_object_store(compose: Any) -> None:
    broker, store = (compose["services"][name] for name in ("kafkawire", "minio"))
    environ = broker["environment"]
    tier = parse_tier(environ["KAFKAWIRE_TIER"])
    assert tier.url == "s3://kafkawire/cluster"
    assert environ["AWS_ENDPOINT_URL"] == "http://minio:9000"
    assert "minio" in broker["depends_on"]
    assert environ["AWS_ACCESS_KEY_ID"] == store["environment"]["MINIO_ROOT_USER"]
    assert environ["AWS_SECRET_ACCESS_KEY"] == store["environment"]["MINIO_ROOT_PASSWORD"]


def test_image_runs_unprivileged_with_health_check() -> None:
    lines = (ROOT / "Dockerfile").read_text(encoding="utf-8").splitlines()
    last_stage = lines[max(i for i, line in enumerate(lines) if line.startswith("FROM")) :]
    assert "USER kafkawire" in last_stage
    assert any(line.startswith("HEALTHCHECK") for line in last_stage)
    assert last_stage.index("USER kafkawire") < len(last_stage) - 1
    assert last_stage[-1] == 'ENTRYPOINT ["kafkawire", "serve"]'
