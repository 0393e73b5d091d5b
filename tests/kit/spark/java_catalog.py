"""Apache Iceberg's own REST catalog, started for a test, and its library to read tables with."""

from __future__ import annotations

import contextlib
import os
import subprocess
import time
import urllib.request
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pyspark
from py4j.java_gateway import GatewayParameters, JavaGateway, launch_gateway

from tests.kit.jars import catalog_jars, table_jars
from tests.kit.jvm import SHORT_LIVED
from tests.kit.minio import SECRET, USER, _die_with_parent
from tests.kit.ports import free_port

MAIN = "org.apache.iceberg.rest.RESTCatalogServer"
READY_WITHIN_S = 60.0
IO = "org.apache.iceberg.io.ResolvingFileIO"
"""S3FileIO for s3://, Hadoop's for folders."""


def s3_properties(endpoint: str) -> dict[str, str]:
    """Properties of Iceberg's S3FileIO, for the tests' MinIO."""
    return {
        "s3.endpoint": endpoint,
        "s3.access-key-id": USER,
        "s3.secret-access-key": SECRET,
        "s3.path-style-access": "true",
        "client.region": "us-east-1",
        "http-client.type": "urlconnection",
    }


@contextlib.contextmanager
def rest_catalog(folder: Path, endpoint: str) -> Iterator[str]:
    """Run a server over SQLite in `folder`, with the MinIO at `endpoint`; yield its URI."""
    port = free_port()
    said = {
        "catalog-impl": "org.apache.iceberg.jdbc.JdbcCatalog",
        "uri": f"jdbc:sqlite:{folder}/catalog.db",
        "warehouse": f"file://{folder}/warehouse",
        "io-impl": IO,
        "rest.port": str(port),
        **s3_properties(endpoint),
    }
    variables = {f"CATALOG_{_variable(name)}": value for name, value in said.items()}
    command = [
        "java",
        "-Xmx512m",
        *SHORT_LIVED,
        "-cp",
        ":".join([*catalog_jars(), *_hadoop()]),
        MAIN,
    ]
    log = folder / "server.log"
    with log.open("wb") as output:
        server = subprocess.Popen(
            command, stdout=output, stderr=output, env=os.environ | variables,
            preexec_fn=_die_with_parent,
        )  # fmt: skip
    try:
        _wait(f"http://127.0.0.1:{port}", server, log)
        yield f"http://127.0.0.1:{port}"
    finally:
        server.kill()
        server.wait()


def _variable(name: str) -> str:
    """The environment variable of a property: the server reads _ as . and __ as -."""
    return name.replace("-", "__").replace(".", "_").upper()


def _hadoop() -> list[str]:
    jars = Path(pyspark.__path__[0]) / "jars"
    return [str(path) for path in jars.glob("hadoop-client-*.jar")]


def _wait(uri: str, server: subprocess.Popen[bytes], log: Path) -> None:
    end = time.monotonic() + READY_WITHIN_S
    while time.monotonic() < end and server.poll() is None:
        with contextlib.suppress(OSError), urllib.request.urlopen(f"{uri}/v1/config", timeout=5):
            return
        time.sleep(0.1)
    raise AssertionError(f"no REST catalog at {uri}: {log.read_text()[-2000:]}")


@contextlib.contextmanager
def java_library() -> Iterator[Any]:
    """A JVM with Iceberg's library, reached through py4j."""
    jars = Path(pyspark.__path__[0]) / "jars"
    found = [str(path) for name in ("slf4j-api", "zstd-jni") for path in jars.glob(f"{name}-*")]
    bundle = [path for path in catalog_jars() if "aws-bundle" in path or "url-conn" in path]
    runtime = [path for path in table_jars().split(",") if "iceberg" in path]
    classpath = ":".join([*runtime, *bundle, *_hadoop(), *found])
    (py4j,) = jars.glob("py4j-*.jar")
    port = launch_gateway(
        jarpath=str(py4j), classpath=classpath, javaopts=list(SHORT_LIVED), die_on_exit=True
    )
    gateway = JavaGateway(gateway_parameters=GatewayParameters(port=port, auto_convert=True))
    try:
        yield gateway.jvm
    finally:
        gateway.shutdown()


def rows(jvm: Any, properties: Mapping[str, str], name: str) -> list[tuple[str, int, int]]:
    """Topic, partition and offset of every row of a table, as Iceberg's library reads them."""
    iceberg = jvm.org.apache.iceberg
    catalog = iceberg.rest.RESTCatalog()
    catalog.setConf(jvm.org.apache.hadoop.conf.Configuration())
    catalog.initialize("java", dict(properties))
    try:
        table = catalog.loadTable(iceberg.catalog.TableIdentifier.parse(name))
        found = iceberg.data.IcebergGenerics.read(table).build()
        read = iceberg.relocated.com.google.common.collect.Lists.newArrayList(found)
        names = ("_topic", "_partition", "_offset")
        return sorted(tuple(row.getField(name) for name in names) for row in read)
    finally:
        catalog.close()
