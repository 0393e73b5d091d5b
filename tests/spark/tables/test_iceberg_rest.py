"""Iceberg through a REST catalog whose responses get lost: every row once. The catalog here is
pyiceberg's own over HTTP; tests/spark/tables/test_iceberg_java.py uses Iceberg's server."""

from __future__ import annotations

import json
import shutil
import ssl
import subprocess
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import requests
from pyiceberg.catalog import load_catalog
from pyiceberg.table import Table as Loaded

from kafkawire.reading.files.open import open_place
from kafkawire.reading.model.source import SourceError
from kafkawire_spark.pipeline.jobs.job import Job
from kafkawire_spark.pipeline.jobs.layout import describe_schema
from kafkawire_spark.pipeline.jobs.section import JobError
from kafkawire_spark.pipeline.jobs.state import FileFacts, TableState
from kafkawire_spark.pipeline.tables import commit as committing
from kafkawire_spark.pipeline.tables import iceberg_catalog
from kafkawire_spark.pipeline.tables.commit import CommitError
from kafkawire_spark.pipeline.tables.iceberg import IcebergTable
from kafkawire_spark.pipeline.tables.ownership import description
from kafkawire_spark.pipeline.tables.port import open_table_at
from tests.kit.spark import lake
from tests.kit.spark.lake import SCHEMA, record
from tests.kit.spark.rest_catalog import BUSY, CONFLICT, FAULTS, Front, in_sqlite

NAME = "shop.eu.orders"
SECRET = "s3cr3t-of-the-job"


@pytest.fixture
def front(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Front]:
    monkeypatch.setattr(committing, "WAIT_S", 0.001)
    monkeypatch.setattr(committing, "WAIT_S_MAX", 0.01)
    started = Front(in_sqlite(tmp_path)).start()
    yield started
    started.stop()


def job(front: Front, path: Path, **more: Any) -> Job:
    catalog = {"type": "rest", "uri": front.uri, "name": NAME, **more}
    return lake.job(path, "iceberg", catalog=catalog)


def table_at(front: Front, path: Path, **more: Any) -> IcebergTable:
    table = IcebergTable(job(front, path, **more), open_place(str(path)))
    table.prepare(SCHEMA, ())
    return table


def wrote(table: IcebergTable, *args: Any, **more: Any) -> FileFacts:
    return lake.wrote(table.place, *args, schema=table.file_schema(SCHEMA), **more)


def loaded(front: Front) -> Loaded:
    """The table as an independent reader opens it."""
    return load_catalog("else", type="rest", uri=front.uri).load_table(NAME)


def offsets(front: Front) -> list[int]:
    found = loaded(front).scan(selected_fields=("_offset",)).to_arrow()
    return sorted(found.column(0).to_pylist())


@pytest.mark.slow
@pytest.mark.parametrize("fault", FAULTS)
def test_every_fault_of_a_commit(fault: str, front: Front, tmp_path: Path) -> None:
    """Faults of the table's creation, a run's, a compaction's and an expiry's commit: each is
    committed once in the end, and all files can be read, so none was deleted as belonging to a
    failed attempt."""
    front.faults = [fault]
    table = table_at(front, tmp_path / "t")
    files = [wrote(table, run, 5 * run, 5 * run + 5) for run in range(3)]
    for run, file in enumerate(files, 1):
        front.faults = [fault, None]
        table.commit(record(run, [file]))
        table.commit(record(run, [wrote(table, 9, run, run + 1, attempt="b2")]))  # it is there
    assert offsets(front) == list(range(15))
    front.faults = [fault]
    table.replace(files[:2], [wrote(table, 1, 0, 10, kind="c")], 1)
    assert (table.read_last_run(), table.read_last_replacement()) == (3, 1)
    assert [one.summary.additional_properties.get("kafkawire.run") for one in snapshots(front)] == [
        "1", "2", "3", None,
    ]  # fmt: skip
    assert offsets(front) == list(range(15))
    table._history_s = 0
    front.faults = [fault]
    assert table.tidy() > 0
    assert len(snapshots(front)) == 1
    assert offsets(front) == list(range(15))
    assert (table.read_last_run(), table.read_last_replacement()) == (3, 1)


def snapshots(front: Front) -> list[Any]:
    return list(loaded(front).snapshots())


@pytest.mark.slow
def test_concurrent_driver_commits_same_run(front: Front, tmp_path: Path) -> None:
    """The same run of another driver is committed just before this one's commit, which is answered
    with a conflict; then one whose own commit succeeds and is answered with a conflict."""
    table, other = (table_at(front, tmp_path / "t") for _ in range(2))
    late = wrote(table, 1, 0, 5, attempt="b2")

    def first() -> None:
        front.before = None
        other.commit(record(1, [late]))

    front.before = first
    table.commit(record(1, [wrote(table, 1, 0, 5)]))
    assert [file.path for file in table.files()] == [late.path]
    assert offsets(front) == [0, 1, 2, 3, 4]


def test_unreachable_catalog(front: Front, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    table = table_at(front, tmp_path / "t")
    monkeypatch.setattr(committing, "TRIES", 4)
    front.faults = [BUSY, CONFLICT] * 2
    with pytest.raises(CommitError, match=r"run 1 cannot be settled .* 4 times .*somebody was"):
        table.commit(record(1, [wrote(table, 1, 0, 5)]))
    assert table.read_last_run() == 0
    front.stop()
    with pytest.raises(CommitError, match=r"its last run cannot be settled.*Connection"):
        table.read_last_run()


def test_unresponsive_catalog(
    front: Front, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(iceberg_catalog, "TIMEOUT_S", (1.0, 0.05))
    monkeypatch.setattr(committing, "TRIES", 2)
    backend, over = front.backend, threading.Event()

    def slow(method: str, path: str, body: bytes) -> tuple[int, bytes]:
        over.wait(10)
        return backend(method, path, body)

    front.backend = slow
    with pytest.raises(CommitError, match=r"the table's schema .*Read timed out"):
        table_at(front, tmp_path / "t")
    over.set()


def test_credentials_warehouse_prefix_and_scope(
    front: Front, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    """They are sent to the catalog, from the environment, and to no other server."""
    front.credential, front.scope, front.token = f"me:{SECRET}", "PRINCIPAL_ROLE:ALL", "t0ken"
    front.warehouse, front.prefix = "lake", "wh-7"
    said = {
        "credential": "me:${POLARIS_SECRET}",
        "scope": front.scope,
        "warehouse": "lake",
        "oauth2-server-uri": f"{front.uri}/v1/oauth/tokens",
    }
    with pytest.raises(JobError, match=r"catalog credential takes \$\{POLARIS_SECRET\} from the"):
        table_at(front, tmp_path / "t", **said)
    monkeypatch.setenv("POLARIS_SECRET", SECRET)
    table = table_at(front, tmp_path / "t", **said)
    TableState(table.place).write_description(
        description(job(front, tmp_path / "t", **said), describe_schema(SCHEMA)), new=True
    )
    table.commit(record(1, [wrote(table, 1, 0, 5)]))
    assert "GET /v1/wh-7/namespaces/shop%1Feu/tables/orders" in front.seen
    assert open_table_at(str(tmp_path / "t")).read_last_run() == 1  # from the folder alone
    with pytest.raises(CommitError, match=r"the Iceberg table shop.eu.orders: .*") as wrong:
        table_at(front, tmp_path / "t", **{**said, "scope": "nothing"})
    assert "OAuthError" in str(wrong.value) or "invalid_client" in str(wrong.value)
    monkeypatch.setenv("POLARIS_SECRET", "wrong-secret")
    with pytest.raises(CommitError) as other:
        table.read_last_run()
    texts = [path.read_bytes() for path in (tmp_path / "t").rglob("*") if path.is_file()]
    texts += [
        str(wrong.value).encode(),
        str(other.value).encode(),
        "".join(capfd.readouterr()).encode(),
    ]
    assert not any(SECRET.encode() in text or b"wrong-secret" in text for text in texts)
    assert not any(SECRET in line for line in front.seen)


def test_token_from_job(front: Front, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    front.token = "t0ken"
    monkeypatch.setenv("LAKE_TOKEN", "t0ken")
    assert table_at(front, tmp_path / "t", token="${LAKE_TOKEN}").read_last_run() == 0
    with pytest.raises(SourceError, match="NotAuthorized"):
        table_at(front, tmp_path / "t", token="another")


def test_catalog_sections_are_passed_to_library(
    front: Front, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """pyiceberg has structured settings in sections: auth, ssl."""
    front.credential, front.scope, front.token = f"me:{SECRET}", "all", "t0ken"
    oauth = {"client_id": "me", "client_secret": "${LAKE_SECRET}", "scope": "all"}
    asked: list[str] = []

    def post(url: str, **kwargs: Any) -> Any:
        asked.append(str(kwargs))
        return requests.Session().post(
            url, data={**kwargs["data"], "client_id": "me", "client_secret": SECRET}
        )

    monkeypatch.setattr("pyiceberg.catalog.rest.auth.requests.post", post)  # it sends a header
    monkeypatch.setenv("LAKE_SECRET", SECRET)
    auth = {"type": "oauth2", "oauth2": {**oauth, "token_url": f"{front.uri}/v1/oauth/tokens"}}
    table = table_at(front, tmp_path / "t", auth=auth)
    TableState(table.place).write_description(
        description(job(front, tmp_path / "t", auth=auth), describe_schema(SCHEMA)), new=True
    )
    assert table.read_last_run() == 0
    assert asked
    kept = json.loads((tmp_path / "t" / "_kafkawire" / "table.json").read_text())["catalog"]
    assert kept["auth"] == auth
    plain = {"type": "oauth2", "oauth2": {**oauth, "client_secret": SECRET}}
    own_place = TableState(open_place(str(tmp_path / "u")))
    own_place.write_description(
        description(job(front, tmp_path / "u", auth=plain), describe_schema(SCHEMA)), new=True
    )
    assert SECRET not in (tmp_path / "u" / "_kafkawire" / "table.json").read_text()


@pytest.mark.slow
def test_tls(front: Front, tmp_path: Path) -> None:
    if shutil.which("openssl") is None:
        pytest.skip("there is no openssl to make a certificate with")
    key, cert = tmp_path / "key.pem", tmp_path / "cert.pem"
    made = "req -x509 -newkey rsa:2048 -nodes -days 1 -subj /CN=catalog -addext"
    subprocess.run(
        ["openssl", *made.split(), "subjectAltName=IP:127.0.0.1", "-keyout", key, "-out", cert],
        check=True, capture_output=True, timeout=30,
    )  # fmt: skip
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(cert, key)
    secure = Front(front.backend).start(context)
    try:
        table = table_at(secure, tmp_path / "t", ssl={"cabundle": str(cert)})
        table.commit(record(1, [wrote(table, 1, 0, 5)]))
        assert offsets(front) == [0, 1, 2, 3, 4]
        with pytest.raises(CommitError, match=r"shop.eu.orders: .*[Cc]ertificate"):
            table_at(secure, tmp_path / "t")
    finally:
        secure.stop()


def test_catalog_from_pyiceberg_configuration(
    front: Front, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The job has a name only; the rest is in ~/.pyiceberg.yaml or PYICEBERG_CATALOG__..."""
    from pyiceberg import catalog
    from pyiceberg.utils.config import Config

    monkeypatch.setenv("PYICEBERG_CATALOG__MINE__URI", front.uri)
    monkeypatch.setattr(catalog, "_ENV_CONFIG", Config())
    said = {"catalog_name": "mine", "name": NAME}
    table = IcebergTable(
        lake.job(tmp_path / "t", "iceberg", catalog=said), open_place(str(tmp_path / "t"))
    )
    table.prepare(SCHEMA, ())
    table.commit(record(1, [wrote(table, 1, 0, 5)]))
    assert offsets(front) == [0, 1, 2, 3, 4]


@pytest.mark.parametrize("name", ["orders", ".orders", ""])
def test_table_name_without_namespace_is_refused(name: str, front: Front, tmp_path: Path) -> None:
    with pytest.raises(JobError, match=r"catalog name is '.*', it must be NAMESPACE.TABLE"):
        table_at(front, tmp_path / "t", name=name)


def test_table_at_other_location_is_refused(front: Front, tmp_path: Path) -> None:
    """Files at one path, and a table that would refer to them at another."""
    table_at(front, tmp_path / "t")
    with pytest.raises(CommitError, match=r"has the table shop.eu.orders at .*/t, .*must be the s"):
        table_at(front, tmp_path / "u")
