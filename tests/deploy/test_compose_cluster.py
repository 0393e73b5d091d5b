"""docker-compose.cluster.yml: three brokers that can reach and take over each other.

No container is started here, as that needs a Docker daemon;
tests/real/test_cluster.py runs brokers on PostgreSQL.
"""

from __future__ import annotations

from typing import Any

import pytest
import yaml

from kafkawire.broker.options import ServeOptions
from kafkawire.cli.serving.options import parse
from kafkawire.cli.serving.run import has_workers, read, serve_options
from kafkawire.codec.configs.settings import BrokerConfig
from kafkawire.supervisor.plan import plans_of, takeover_ports
from tests.deploy.dockerfile import ROOT
from tests.deploy.test_compose import TEXT as SINGLE
from tests.deploy.test_compose import validate

TEXT = (ROOT / "docker-compose.cluster.yml").read_text(encoding="utf-8")
BROKERS = {"kafkawire-1": 1, "kafkawire-2": 2, "kafkawire-3": 3}


@pytest.fixture
def services() -> Any:
    return yaml.safe_load(TEXT)["services"]


def options_of(service: Any) -> ServeOptions:
    """The options of a broker in its container."""
    given = parse([])
    assert given is not None
    sources = read(given, service["environment"])
    options = serve_options(sources)
    assert has_workers(options, sources)
    return options


def test_file_meets_the_specification() -> None:
    validate(yaml.safe_dump(yaml.safe_load(TEXT)))  # the library knows no merged mappings


@pytest.mark.parametrize("name", BROKERS)
def test_brokers_take_over_each_other(services: Any, name: str) -> None:
    options = options_of(services[name])
    config = BrokerConfig(options.settings)
    assert config.node_id == BROKERS[name]
    assert (config.durability, config.cluster_takeover_enable) == ("s3", True)
    assert options.advertised["INSIDE"][0] == name
    assert len(takeover_ports(options)) == len(BROKERS) - 1


@pytest.mark.parametrize("name", BROKERS)
def test_all_ports_of_clients_are_published_with_their_numbers(services: Any, name: str) -> None:
    options = options_of(services[name])
    (host,) = [at for at, each in enumerate(options.listeners) if each.name == "HOST"]
    (own,) = plans_of(options)
    ports = [options.listeners[host].port, own.ports[host]]
    ports += [each[host] for each in takeover_ports(options)]
    published = [text.split(":") for text in services[name]["ports"]]
    assert [(inner, outer) for _, outer, inner in published if inner != "9404"] == [
        (str(port), str(port)) for port in ports
    ]


def test_addresses_differ_and_are_of_this_machine_only(services: Any) -> None:
    ports = [text for service in services.values() for text in service.get("ports", [])]
    assert all(text.startswith("127.0.0.1:") for text in ports)
    assert len({text.split(":")[1] for text in ports}) == len(ports) == 16


def test_stores_are_those_of_the_file(services: Any) -> None:
    for name in BROKERS:
        environ = services[name]["environment"]
        store, database = services["minio"], services["postgres"]["environment"]
        user, password = database["POSTGRES_USER"], database["POSTGRES_PASSWORD"]
        assert environ["KAFKAWIRE_METADATA"] == f"postgresql://{user}:{password}@postgres/{user}"
        assert environ["AWS_ENDPOINT_URL"] == "http://minio:9000"
        assert environ["AWS_SECRET_ACCESS_KEY"] == store["environment"]["MINIO_ROOT_PASSWORD"]
        waits = services[name]["depends_on"]
        assert {key: each["condition"] for key, each in waits.items()} == {
            "postgres": "service_healthy",
            "minio": "service_healthy",
        }
    assert "healthcheck" in services["postgres"]
    assert services["minio"]["image"] == yaml.safe_load(SINGLE)["services"]["minio"]["image"]


def test_data_is_in_declared_volumes(services: Any) -> None:
    mounts = [v.split(":")[0] for s in services.values() for v in s.get("volumes", [])]
    assert sorted(mounts) == sorted(yaml.safe_load(TEXT)["volumes"])
