"""The Helm chart: its linter, what it renders against the schemas of Kubernetes, and its values.

Helm is built by Go (tests/programs/helm); the tests that need it are skipped without Go.
"""

from __future__ import annotations

import json
import os
import re
import shlex
import subprocess
import tomllib
from pathlib import Path
from typing import Any

import confluent_kafka
import pytest
import yaml

from kafkawire.cli.serving.options import parse
from kafkawire.cli.serving.run import has_workers, read, serve_options
from kafkawire.cli.serving.sources import collect
from kafkawire.cli.shared.options import parse_advertised, parse_listeners
from kafkawire.codec.configs.settings import BrokerConfig
from kafkawire.supervisor.plan import plans_of, takeover_ports
from tests.deploy.dockerfile import DOCKERFILE, ROOT, inherited, stages
from tests.deploy.test_systemd import serving
from tests.documents.pages import block, lines, sections
from tests.kit.cli import Typed
from tests.kit.ports import free_ports
from tests.kit.programs import program
from tests.kit.tls import certificates

CHART = ROOT / "deploy" / "helm" / "kafkawire"
KUBERNETES = "1.31"
DEPLOYMENT = "docs/deployment.md"
VALUES = yaml.safe_load((CHART / "values.yaml").read_text(encoding="utf-8"))
INSECURE = {"insecure": True}
SECURE = {"tls": {"existingSecret": "tls"}, "sasl": {"existingSecret": "users"}}
CLUSTER = SECURE | {
    "brokers": 3,
    "metadata": {"existingSecret": "postgres"},
    "tier": {"url": "s3://bucket/prefix"},
}
ALL_ON = SECURE | {
    "settings": {"num.partitions": 3, "journal.bytes": 134217728, "flush": "os"},
    "imagePullSecrets": ["registry"],
    "persistence": {"storageClass": "fast", "annotations": {"a": "b"}},
    "metadata": {"existingSecret": "postgres"},
    "tier": {"url": "s3://bucket/prefix", "existingSecret": "s3"},
    "serviceAccount": {"annotations": {"eks.amazonaws.com/role-arn": "arn:aws:iam::1:role/x"}},
    "external": {
        "enabled": True,
        "type": "NodePort",
        "host": "kafka.example.org",
        "nodePort": 31092,
    },
    "metrics": {
        "serviceMonitor": {"enabled": True, "labels": {"release": "prometheus"}},
        "tls": {"existingSecret": "certificate"},
        "token": {"existingSecret": "monitors"},
    },
    "extraEnv": [{"name": "AWS_REGION", "value": "eu-central-1"}],
    "podAnnotations": {"a": "b"},
    "podLabels": {"team": "data"},
    "nodeSelector": {"disk": "nvme"},
    "tolerations": [{"key": "data", "operator": "Exists"}],
    "affinity": {"nodeAffinity": {}},
    "priorityClassName": "high",
}
KINDS = pytest.mark.parametrize(
    "values",
    [INSECURE, SECURE, SECURE | {"sasl": {"enabled": False}}, CLUSTER, ALL_ON],
    ids=["insecure", "secure", "without log-in", "several", "everything on"],
)


def helm(*arguments: str, values: dict[str, Any] | None = None) -> subprocess.CompletedProcess[str]:
    """Run Helm on the chart with values as a file on standard input."""
    return subprocess.run(
        [str(program("helm")), *arguments, "--values", "-"],
        input=yaml.safe_dump(values or {}),
        capture_output=True,
        text=True,
        timeout=120,
    )


def render(values: dict[str, Any] | None = None) -> dict[tuple[str, str], Any]:
    """Every resource by kind and name, of a release `events` in the namespace `data`."""
    where = ("events", str(CHART), "--namespace", "data", "--kube-version", KUBERNETES)
    done = helm("template", *where, values=INSECURE if values is None else values)
    assert done.returncode == 0, done.stderr
    found = [resource for resource in yaml.safe_load_all(done.stdout) if resource]
    return {(resource["kind"], resource["metadata"]["name"]): resource for resource in found}


def broker(values: dict[str, Any] | None = None) -> tuple[Any, Any]:
    """The specification of the pod and of its container."""
    pod = render(values)["StatefulSet", "events-kafkawire"]["spec"]["template"]["spec"]
    return pod, pod["containers"][0]


def configuration(values: dict[str, Any] | None = None) -> str:
    """The TOML file of the broker."""
    return str(render(values)["ConfigMap", "events-kafkawire"]["data"]["kafkawire.toml"])


@pytest.mark.slow
@KINDS
def test_linter_finds_nothing(values: dict[str, Any]) -> None:
    done = helm("lint", str(CHART), "--strict", values=values)
    assert done.returncode == 0, done.stdout
    assert not re.search(r"\[(WARNING|ERROR)\]", done.stdout)


@pytest.mark.slow
@KINDS
def test_resources_match_the_schemas_of_kubernetes(values: dict[str, Any]) -> None:
    library = pytest.importorskip("kubernetes_validate")
    kinds = set()
    for (kind, _), resource in render(values).items():
        kinds.add(kind)
        if kind != "ServiceMonitor":  # the Prometheus operator's
            library.validate(resource, KUBERNETES, strict=True)
    wanted = {"ConfigMap", "Pod", "PodDisruptionBudget", "Service", "ServiceAccount", "StatefulSet"}
    assert kinds == (wanted | {"ServiceMonitor"} if values is ALL_ON else wanted)


@pytest.mark.slow
def test_a_wrong_resource_is_found() -> None:
    library = pytest.importorskip("kubernetes_validate")
    resource = render()["StatefulSet", "events-kafkawire"]
    resource["spec"]["replica"] = 2
    with pytest.raises(library.ValidationError, match="replica"):
        library.validate(resource, KUBERNETES, strict=True)


@pytest.mark.slow
def test_broker_starts_with_the_configuration(tmp_path: Path) -> None:
    """The file is valid with the environment of the image, and clients reach what it advertises."""
    path = tmp_path / "kafkawire.toml"
    path.write_text(configuration(ALL_ON), encoding="utf-8")
    _, container = broker(ALL_ON)
    environment = dict(re.findall(r"(KAFKAWIRE_\w+)=(\S+)", inherited_environment()))
    environment |= {e["name"]: e["value"] for e in container["env"] if "value" in e}
    assert environment["KAFKAWIRE_CONFIG"] == f"/etc/kafkawire/{path.name}"
    found = collect({}, [], environment, str(path))
    listeners = parse_listeners(found.options["listen"].values)
    reported = parse_advertised(found.options["advertise"].values, listeners)
    ports = {port["name"]: port["containerPort"] for port in container["ports"]}
    assert {x.name: (x.protocol.name, x.port) for x in listeners} == {
        "INSIDE": ("SASL_TLS", ports["kafka"]),
        "OUTSIDE": ("SASL_TLS", ports["external"]),
    }
    assert reported["INSIDE"] == ("events-kafkawire.data.svc.cluster.local", 9092)
    assert reported["OUTSIDE"] == ("kafka.example.org", 31092)
    assert found.options["tier"].text == "s3://bucket/prefix"
    assert found.options["data"].text == "/data"
    settings = {name: value.text for name, value in found.settings.items()}
    assert settings["num.partitions"] == "3"
    assert settings["journal.bytes"] == "134217728"
    assert settings["flush"] == "os"
    assert settings["metrics.listener"] == f"0.0.0.0:{ports['metrics']}"


def inherited_environment() -> str:
    """The ENV of the broker's image."""
    return inherited(stages(DOCKERFILE.read_text(encoding="utf-8")), "base", "ENV") or ""


@pytest.mark.slow
def test_pod_is_restricted_and_runs_as_the_user_of_the_image() -> None:
    pod, container = broker()
    user = inherited(stages(DOCKERFILE.read_text(encoding="utf-8")), "broker", "USER")
    security = pod["securityContext"]
    assert f"{security['runAsUser']}:{security['runAsGroup']}" == user
    assert security["runAsNonRoot"] is True
    assert security["fsGroup"] == security["runAsGroup"]
    assert container["securityContext"] == {
        "allowPrivilegeEscalation": False,
        "readOnlyRootFilesystem": True,
        "capabilities": {"drop": ["ALL"]},
    }
    assert pod["enableServiceLinks"] is False  # its variables are named as the broker's own


@pytest.mark.slow
def test_probes_and_resources() -> None:
    pod, container = broker(INSECURE | {"probes": {"startupSeconds": 601}})
    startup, ready = container["startupProbe"], container["readinessProbe"]
    assert startup["httpGet"] == ready["httpGet"] == {"path": "/health", "port": "metrics"}
    assert startup["failureThreshold"] * startup["periodSeconds"] == 605
    command = container["livenessProbe"]["exec"]["command"]
    assert command == ["kafkawire-health", "--alive"]
    assert "health /usr/local/bin/kafkawire-health" in DOCKERFILE.read_text(encoding="utf-8")
    assert {"cpu", "memory"} <= set(container["resources"]["requests"])
    assert "memory" in container["resources"]["limits"]
    assert pod["terminationGracePeriodSeconds"] >= 30


@pytest.mark.slow
def test_secrets_are_referred_to() -> None:
    _, container = broker(ALL_ON)
    (metadata,) = (e for e in container["env"] if e["name"] == "KAFKAWIRE_METADATA")
    assert metadata["valueFrom"] == {"secretKeyRef": {"name": "postgres", "key": "url"}}
    assert container["envFrom"] == [{"secretRef": {"name": "s3"}}]
    _, container = broker()
    assert "envFrom" not in container
    assert not [e for e in container["env"] if e["name"] == "KAFKAWIRE_METADATA"]


@pytest.mark.slow
def test_metrics_with_encryption_and_a_token() -> None:
    pod, container = broker(ALL_ON)
    environment = {e["name"]: e.get("value") for e in container["env"]}
    mounts = {m["mountPath"]: m for m in container["volumeMounts"]}
    volumes = {v["name"]: v.get("secret") for v in pod["volumes"]}
    found = {}
    for name in ("SSL_KEYSTORE_LOCATION", "SSL_KEY_LOCATION", "METRICS_TOKEN_FILE"):
        folder, _, file = str(environment[f"KAFKAWIRE_SET_{name}"]).rpartition("/")
        assert mounts[folder]["readOnly"]
        secret = volumes[mounts[folder]["name"]]
        assert secret["defaultMode"] == 0o440  # otherwise the broker refuses the token
        found[name] = secret["secretName"], file
    assert found == {
        "SSL_KEYSTORE_LOCATION": ("certificate", "tls.crt"),
        "SSL_KEY_LOCATION": ("certificate", "tls.key"),
        "METRICS_TOKEN_FILE": ("monitors", "token"),
    }
    assert environment["KAFKAWIRE_SET_METRICS_TLS"] == "true"
    for probe in ("startupProbe", "readinessProbe"):
        assert container[probe]["httpGet"] == {
            "path": "/health", "port": "metrics", "scheme": "HTTPS",
        }  # fmt: skip
    (endpoint,) = render(ALL_ON)["ServiceMonitor", "events-kafkawire"]["spec"]["endpoints"]
    assert endpoint["scheme"] == "https"
    assert endpoint["tlsConfig"] == {
        "serverName": "events-kafkawire.data.svc.cluster.local",
        "ca": {"secret": {"name": "certificate", "key": "ca.crt"}},
    }
    assert endpoint["authorization"] == {"credentials": {"name": "monitors", "key": "token"}}
    _, plain = broker()
    assert not [e for e in plain["env"] if "TLS" in e["name"] or "TOKEN" in e["name"]]


@pytest.mark.slow
def test_volume_and_disruption_budget() -> None:
    found = render(INSECURE | {"persistence": {"size": "100Gi"}})
    (claim,) = found["StatefulSet", "events-kafkawire"]["spec"]["volumeClaimTemplates"]
    assert claim["spec"]["resources"] == {"requests": {"storage": "100Gi"}}
    _, container = broker()
    mounts = {mount["name"]: mount["mountPath"] for mount in container["volumeMounts"]}
    assert mounts[claim["metadata"]["name"]] == "/data"
    assert found["PodDisruptionBudget", "events-kafkawire"]["spec"]["maxUnavailable"] == 0
    several = render(CLUSTER)
    assert several["PodDisruptionBudget", "events-kafkawire"]["spec"]["maxUnavailable"] == 1
    off = render(INSECURE | {"podDisruptionBudget": {"enabled": False}})
    assert ("PodDisruptionBudget", "events-kafkawire") not in off


@pytest.mark.slow
@pytest.mark.parametrize(
    ("values", "named"),
    [
        ({"replicas": 3}, "replicas"),
        ({"persistence": {"size": "big"}}, "size"),
        ({"persistence": {"accessModes": ["ReadWriteMany"]}}, "accessModes"),
        ({"external": {"enabled": True}}, "host"),
        ({"tier": {"url": "https://bucket"}}, "url"),
        ({"service": {"port": 0}}, "port"),
        ({"podDisruptionBudget": {"maxUnavailable": 2}}, "maxUnavailable"),
        ({"logLevel": "loud"}, "logLevel"),
        ({"brokers": 10}, "brokers"),
        ({"sasl": {"superUsers": ["admin"]}}, "superUsers"),
        ({"insecure": False}, "set tls.existingSecret"),
        ({"insecure": True, **SECURE}, "contradict"),
        (SECURE | {"sasl": {}}, "set sasl.existingSecret"),
        (CLUSTER | {"metadata": {}}, "set metadata.existingSecret and tier.url"),
        (CLUSTER | {"tier": {}}, "set metadata.existingSecret and tier.url"),
        (CLUSTER | {"external": {"enabled": True, "host": "x"}}, "external.enabled"),
        (CLUSTER | {"metrics": {"tls": {"existingSecret": "x"}}}, "metrics.tls.existingSecret"),
    ],
)
def test_wrong_values_are_refused(values: dict[str, Any], named: str) -> None:
    given = values if values.keys() & {"insecure", "tls"} else INSECURE | values
    done = helm("template", "x", str(CHART), "--kube-version", KUBERNETES, values=given)
    assert done.returncode == 1
    assert done.stdout == ""
    assert named in done.stderr


def environment_of(values: dict[str, Any], folder: Path, **replaced: str) -> dict[str, str]:
    """The environment of the container, with the variables of the image and of the pod -1, and the
    configuration as a file, in which the given texts are replaced."""
    text = configuration(values)
    for old, new in replaced.items():
        assert old in text
        text = text.replace(old, new)
    config = folder / "kafkawire.toml"
    config.write_text(text, encoding="utf-8")
    _, container = broker(values)
    found = dict(re.findall(r"(KAFKAWIRE_\w+)=(\S+)", inherited_environment()))
    found["POD_NAME"] = "events-kafkawire-1"
    for each in container["env"]:
        if "value" in each:  # a pod may name variables that are before it
            found[each["name"]] = re.sub(r"\$\((\w+)\)", lambda m: found[m[1]], each["value"])
    return found | {"KAFKAWIRE_CONFIG": str(config)}


@pytest.mark.slow
@pytest.mark.parametrize("brokers", [2, 3, 9])
def test_several_brokers_take_over_each_other(brokers: int, tmp_path: Path) -> None:
    values = CLUSTER | {"brokers": brokers}
    environ = environment_of(values, tmp_path)
    environ |= {"KAFKAWIRE_METADATA": "postgresql://x", "KAFKAWIRE_SET_NODE_ID": "2"}
    given = parse([])
    assert given is not None
    sources = read(given, environ)
    options = serve_options(sources)
    assert has_workers(options, sources)
    config = BrokerConfig(options.settings)
    assert (config.durability, config.cluster_takeover_enable) == ("s3", True)
    where = "events-kafkawire-1.events-kafkawire-headless.data.svc.cluster.local"
    assert options.advertised["INSIDE"][0] == where
    stateful = render(values)["StatefulSet", "events-kafkawire"]["spec"]
    assert where.split(".")[1] == stateful["serviceName"]
    assert (stateful["replicas"], stateful["podManagementPolicy"]) == (brokers, "Parallel")
    _, container = broker(values)
    opened = [port["containerPort"] for port in container["ports"] if port["name"] != "metrics"]
    (own,) = plans_of(options)
    others = takeover_ports(options)
    assert len(others) == brokers - 1
    assert opened == [options.listeners[0].port, own.ports[0], *(ports[0] for ports in others)]


@pytest.mark.slow
def test_node_id_is_that_of_the_pod(tmp_path: Path) -> None:
    """The container's command, with a program in place of kafkawire that prints its node id."""
    _, container = broker(CLUSTER)
    (tmp_path / "kafkawire").write_text("#!/bin/sh\necho $1 $KAFKAWIRE_SET_NODE_ID\n")
    (tmp_path / "kafkawire").chmod(0o755)
    for pod, said in (("events-kafkawire-0", "serve 1\n"), ("a-1-12", "serve 13\n")):
        environ = {"PATH": f"{tmp_path}:{os.environ['PATH']}", "POD_NAME": pod}
        assert subprocess.check_output(container["command"], env=environ, text=True) == said


@pytest.mark.slow
def test_secrets_are_mounted_where_the_configuration_names_them() -> None:
    pod, container = broker(SECURE)
    test = render(SECURE)["Pod", "events-kafkawire-test"]["spec"]
    settings = tomllib.loads(configuration(SECURE))["settings"]
    named = {
        settings["listener.name.inside.ssl.keystore.location"]: "tls",
        settings["listener.name.inside.ssl.key.location"]: "tls",
        settings["sasl.plain.users.file"]: "users",
        settings["inter.broker.client.config"]: "users",
    }
    for spec, of in ((pod, container), (test, test["containers"][0])):
        mounts = {mount["mountPath"]: mount["name"] for mount in of["volumeMounts"]}
        volumes = {volume["name"]: volume.get("secret") for volume in spec["volumes"]}
        for path, secret in named.items():
            found = volumes[mounts[os.path.dirname(path)]]
            assert (found["secretName"], found["defaultMode"]) == (secret, 0o440)
        variables = {each["name"]: each.get("value") for each in of["env"]}
        assert variables["KAFKAWIRE_COMMAND_CONFIG"] == settings["inter.broker.client.config"]


@pytest.mark.real
@pytest.mark.slow
def test_rendered_broker_serves_its_users_only(tmp_path: Path) -> None:
    """With the documented files of the secrets: the first user logs in, and makes another one."""
    port, metrics = free_ports(2)
    (tmp_path / "users").write_text("admin:PASSWORD\n")
    (tmp_path / "users").chmod(0o600)
    server = f"localhost:{port}"
    environ = environment_of(
        SECURE,
        tmp_path,
        **{
            "0.0.0.0:9092": f"127.0.0.1:{port}",
            "events-kafkawire.data.svc.cluster.local:9092": server,
            "/etc/kafkawire-tls/tls.crt": f"{certificates()}/server.pem",
            "/etc/kafkawire-tls/tls.key": f"{certificates()}/server.key",
            "/etc/kafkawire-sasl": str(tmp_path),
        },
    )
    environ["KAFKAWIRE_DATA"] = str(tmp_path / "data")
    environ["KAFKAWIRE_SET_METRICS_LISTENER"] = f"127.0.0.1:{metrics}"
    config = tmp_path / "client.properties"
    text = block(DEPLOYMENT, "Kubernetes", "properties")
    config.write_text(text.replace("/etc/kafkawire-tls/ca.crt", f"{certificates()}/ca.pem"))
    (tmp_path / "password").write_text("secret\n")
    with serving(tmp_path, environ):
        log_in = ("--command-config", str(config))
        made = Typed(
            server, *log_in, "users", "create", "app", "--password-file", f"{tmp_path}/password"
        )
        assert made.code == 0, made.err
        assert "app" in Typed(server, *log_in, "users", "list").out
        for protocol in ("PLAINTEXT", "SSL"):
            client = confluent_kafka.Producer(
                {
                    "bootstrap.servers": server, "security.protocol": protocol,
                    "ssl.ca.location": f"{certificates()}/ca.pem",
                }
            )  # fmt: skip
            with pytest.raises(confluent_kafka.KafkaException):
                client.list_topics(timeout=3)


def documented() -> list[list[str]]:
    """The words after `helm install events CHART` of each such line in docs/deployment.md."""
    found = [shlex.split(line.command) for line in lines(DEPLOYMENT, "Kubernetes")]
    start = ["helm", "install", "events", "deploy/helm/kafkawire"]
    return [words[4:] for words in found if words[:4] == start]


@pytest.mark.slow
def test_documented_installations_render(tmp_path: Path) -> None:
    (tmp_path / "my-values.yaml").write_text(block(DEPLOYMENT, "Kubernetes", "yaml"))
    rendered = []
    for words in documented():
        command = [str(program("helm")), "template", "events", str(CHART), *words]
        command += ["--namespace", "data", "--kube-version", KUBERNETES]
        done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=120)
        assert done.returncode == 0, done.stderr
        rendered.append(done.stdout)
    with_registry, with_values, with_brokers = rendered
    assert "REGISTRY/kafkawire:" in with_registry
    for name in ("kafkawire-postgres", "kafkawire-s3", "kafkawire-tls", "kafkawire-users", "100Gi"):
        assert name in with_values
    assert "replicas: 3" in with_brokers
    address = "events-kafkawire.NAMESPACE.svc.cluster.local:9092"
    assert address in sections(DEPLOYMENT)["Kubernetes"]
    assert address.replace("NAMESPACE", "data") in with_values


def test_every_value_is_in_the_schema_and_has_a_default() -> None:
    schema = json.loads((CHART / "values.schema.json").read_text(encoding="utf-8"))

    def same(values: dict[str, Any], part: dict[str, Any], where: str) -> None:
        assert set(values) == set(part["properties"]) - {"global"}, where
        for name, value in values.items():
            if isinstance(value, dict) and "properties" in part["properties"][name]:
                same(value, part["properties"][name], f"{where}.{name}")

    same(VALUES, schema, "values")
    assert len(VALUES) > 20


def test_versions_are_those_of_the_project() -> None:
    chart = yaml.safe_load((CHART / "Chart.yaml").read_text(encoding="utf-8"))
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    assert chart["appVersion"] == project["version"]
