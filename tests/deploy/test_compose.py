"""docker-compose.yml: what Compose would refuse, addresses, volumes, images, and the files that
its tools are given. No container is started here, as that needs a Docker daemon.
"""

from __future__ import annotations

import json
import re
from typing import Any

import pytest
import yaml

from kafkawire.cli.shared.options import parse_advertised, parse_listeners
from kafkawire.objectstore.url import parse_tier
from kafkawire.supervisor.plan import parse_worker_ports
from tests.deploy.dockerfile import DOCKERFILE, ROOT, inherited, stages

TEXT = (ROOT / "docker-compose.yml").read_text(encoding="utf-8")
WORKERS = (ROOT / "deploy/compose/workers.yml").read_text(encoding="utf-8")
TOOLS = {"kcat", "kafka-ui", "karapace", "prometheus", "grafana"}
WITHOUT_DIGEST = {"edenhill/kcat:1.7.1"}
"""No digest of it is published where it can be checked without Docker Hub."""


@pytest.fixture
def compose() -> Any:
    return yaml.safe_load(TEXT)


def validate(text: str) -> None:
    """Refuse what the Compose specification does: unknown keys, durations, conditions."""
    library = pytest.importorskip("compose_spec")
    # The library accepts a tag or a digest, Docker both.
    library.PyCompose.from_yaml(re.sub(r"(image: \S+?):[\w.-]+@", r"\1@", text)).validate()


def test_compose_specification_is_met() -> None:
    validate(TEXT)


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("stop_grace_period", "stop_grace_time"),
        ("service_healthy", "healthy"),
        ("interval: 10s", "interval: soon"),
    ],
)
def test_mistakes_are_found(old: str, new: str) -> None:
    assert old in TEXT
    with pytest.raises(ValueError, match=new.removeprefix("interval: ")):
        validate(TEXT.replace(old, new))


def test_images_are_pinned(compose: Any) -> None:
    images = {s["image"] for s in compose["services"].values() if "build" not in s}
    unpinned = {image for image in images if not re.search(r":[\w.-]+@sha256:[0-9a-f]{64}$", image)}
    assert unpinned == WITHOUT_DIGEST
    assert not [image for image in images if ":latest" in image]


def test_tools_start_only_when_asked_for(compose: Any) -> None:
    profiles = {name: s.get("profiles") for name, s in compose["services"].items()}
    assert {name for name, each in profiles.items() if each} == TOOLS
    assert all(each in (None, ["tools"]) for each in profiles.values())


def test_addresses_of_workers_are_published(compose: Any) -> None:
    added = yaml.safe_load(WORKERS)["services"]["kafkawire"]
    environ = {**compose["services"]["kafkawire"]["environment"], **added["environment"]}
    listeners = parse_listeners(environ["KAFKAWIRE_LISTEN"].split(","))
    names = [listener.name for listener in listeners]
    own = parse_worker_ports(environ["KAFKAWIRE_WORKER_PORTS"].split(","), names)
    count = int(environ["KAFKAWIRE_WORKERS"])
    assert {name: len(ports) for name, ports in own.items()} == dict.fromkeys(names, count)
    published = [tuple(port.split(":")) for port in added["ports"]]
    assert published == [("127.0.0.1", str(port), str(port)) for port in own["HOST"]]
    taken = {listener.port for listener in listeners}
    assert not taken & {port for ports in own.values() for port in ports}


def test_file_of_workers_meets_the_specification() -> None:
    validate(WORKERS)


def test_advertised_addresses_are_reachable(compose: Any) -> None:
    broker = compose["services"]["kafkawire"]
    listeners = parse_listeners(broker["environment"]["KAFKAWIRE_LISTEN"].split(","))
    reported = parse_advertised(broker["environment"]["KAFKAWIRE_ADVERTISE"].split(","), listeners)
    ports = {listener.name: listener.port for listener in listeners}
    assert all(listener.host == "0.0.0.0" for listener in listeners)
    assert reported["INSIDE"] == ("kafkawire", ports["INSIDE"])  # the service's name in the network
    published = dict(port.split(":")[1:] for port in broker["ports"])
    found = re.search(r"METRICS_LISTENER=0\.0\.0\.0:(\d+)", DOCKERFILE.read_text(encoding="utf-8"))
    assert found is not None
    monitors = found[1]
    assert published == {str(reported["HOST"][1]): str(ports["HOST"]), monitors: monitors}
    assert broker["environment"]["KAFKAWIRE_SERVER"] == f"127.0.0.1:{ports['INSIDE']}"


def test_ports_are_published_on_this_machine_only(compose: Any) -> None:
    ports = [port for s in compose["services"].values() for port in s.get("ports", [])]
    assert len(ports) >= 8
    assert all(port.startswith("127.0.0.1:") for port in ports)
    assert len({port.split(":")[1] for port in ports}) == len(ports)


def test_data_is_in_declared_volumes(compose: Any) -> None:
    mounts = [v.split(":")[0] for s in compose["services"].values() for v in s.get("volumes", [])]
    assert sorted(v for v in mounts if not v.startswith("./")) == sorted(compose["volumes"])
    files = [mount for mount in mounts if mount.startswith("./")]
    assert len(files) == 4
    assert all((ROOT / path).exists() for path in files)


def test_object_store_is_the_one_of_the_file(compose: Any) -> None:
    broker, store = (compose["services"][name] for name in ("kafkawire", "minio"))
    environ = broker["environment"]
    tier = parse_tier(environ["KAFKAWIRE_TIER"])
    assert tier.url == "s3://kafkawire/cluster"
    assert environ["AWS_ENDPOINT_URL"] == "http://minio:9000"
    assert "minio" in broker["depends_on"]
    assert environ["AWS_ACCESS_KEY_ID"] == store["environment"]["MINIO_ROOT_USER"]
    assert environ["AWS_SECRET_ACCESS_KEY"] == store["environment"]["MINIO_ROOT_PASSWORD"]


def test_tools_connect_to_the_broker_inside(compose: Any) -> None:
    services = compose["services"]
    (inside,) = re.findall(
        r"INSIDE://(kafkawire:\d+)", services["kafkawire"]["environment"]["KAFKAWIRE_ADVERTISE"]
    )
    assert services["kafkawire"]["build"]["target"] in stages(DOCKERFILE.read_text("utf-8"))
    assert inside in services["kcat"]["command"].split()
    assert services["kafka-ui"]["environment"]["KAFKA_CLUSTERS_0_BOOTSTRAPSERVERS"] == inside
    registry = services["karapace"]["environment"]
    assert registry["KARAPACE_BOOTSTRAP_URI"] == inside
    address = f"http://{registry['KARAPACE_ADVERTISED_HOSTNAME']}:{registry['KARAPACE_PORT']}"
    assert services["kafka-ui"]["environment"]["KAFKA_CLUSTERS_0_SCHEMAREGISTRY"] == address


def _yaml(path: str) -> Any:
    return yaml.safe_load((ROOT / "deploy" / "compose" / path).read_text(encoding="utf-8"))


def test_prometheus_scrapes_the_broker(compose: Any) -> None:
    configuration = _yaml("prometheus.yml")
    (job,) = configuration["scrape_configs"]
    (rules,) = configuration["rule_files"]
    mounts = compose["services"]["prometheus"]["volumes"]
    assert f"./docs/alerts.rules.yml:/etc/prometheus/{rules}:ro" in mounts
    environment = inherited(stages(DOCKERFILE.read_text("utf-8")), "broker", "EXPOSE") or ""
    assert job["static_configs"] == [{"targets": ["kafkawire:9404"]}]
    assert "9404" in environment


def test_grafana_has_the_dashboard_and_its_datasource(compose: Any) -> None:
    (source,) = _yaml("grafana/datasources/prometheus.yml")["datasources"]
    assert source["url"] == "http://prometheus:9090"
    dashboard = json.loads((ROOT / "docs" / "grafana.json").read_text(encoding="utf-8"))
    (variable,) = (v for v in dashboard["templating"]["list"] if v["type"] == "datasource")
    assert variable["query"] == source["type"]
    (provider,) = _yaml("grafana/dashboards/kafkawire.yml")["providers"]
    mounts = compose["services"]["grafana"]["volumes"]
    assert f"./docs/grafana.json:{provider['options']['path']}/kafkawire.json:ro" in mounts
    assert f"http://localhost:3000/d/{dashboard['uid']}" in TEXT
