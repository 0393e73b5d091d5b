"""The catalog of an Iceberg table: opened by the job's properties, with its errors converted.

The properties are pyiceberg's, including those of REST catalogs. `${NAME}` in a value is replaced
from the environment.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import requests
from pyiceberg.catalog import Catalog, load_catalog, rest
from pyiceberg.exceptions import (
    CommitFailedException,
    CommitStateUnknownException,
    ServerError,
    ServiceUnavailableError,
    TableAlreadyExistsError,
    TooManyRequestsError,
    ValidationException,
)
from pyiceberg.table import CommitTableResponse
from pyiceberg.table import Table as PyIcebergTable
from pyiceberg.table.update import AddSnapshotUpdate, TableRequirement, TableUpdate
from sqlalchemy import URL
from sqlalchemy.exc import IntegrityError, OperationalError

from kafkawire.reading.model.source import SourceError
from kafkawire_spark.pipeline.jobs.job import Job
from kafkawire_spark.pipeline.jobs.section import JobError
from kafkawire_spark.pipeline.tables.commit import CommitError, Conflict
from kafkawire_spark.pipeline.tables.locations import (
    VARIABLE,
    iceberg_properties,
    is_secret,
    location,
)

if TYPE_CHECKING:
    from kafkawire.reading.files.locations import Place

NAMESPACE = "kafkawire"
CATALOG = "kafkawire"
CATALOG_FILE = "_kafkawire/catalog.db"
TIMEOUT_S = (10.0, 60.0)
"""Timeout to connect to a REST catalog and to wait for its response; after that the table is read
to see whether the commit succeeded."""


class OpenedCatalog:
    """The catalog of a job. `table`: the table's name in it; nothing is requested yet."""

    def __init__(self, job: Job, place: Place) -> None:
        """Raise CommitError, JobError."""
        self._place = place
        said = dict(job.table.catalog or {})
        last = re.sub(r"\W", "_", location(place).rpartition("/")[2])
        self.table = str(said.pop("name", f"{NAMESPACE}.{last}"))
        if not self.table.strip(".").count("."):
            raise JobError(f"[table] catalog name is {self.table!r}, it must be NAMESPACE.TABLE")
        self._own = not said  # a name alone refers to pyiceberg's configuration
        self._name = said.pop("catalog_name", CATALOG)
        self._said = said
        if self._own and place.tier.is_s3:
            raise CommitError(
                f"[table] catalog is missing: an Iceberg table in a bucket ({location(place)}) "
                "needs one, like { type = 'rest', uri = 'https://...', warehouse = '...' }"
            )

    @contextmanager
    def __call__(self, *, make: bool = False) -> Iterator[Catalog]:
        """Yield the catalog, and close it at the end. Raises Conflict, CommitError, JobError."""
        # Variables are replaced here and not stored, so that neither the job's file nor the table's
        # folder nor a message contains a secret.
        said = self._own_catalog(make) if self._own else replace_variables(self._said)
        try:
            catalog = load_catalog(self._name, **(iceberg_properties(self._place) | said))
            with catalog:
                _guard(catalog)
                yield catalog
        except (SourceError, Conflict):
            raise
        except Exception as error:  # catalogs raise errors of their services and drivers
            sentence = _sentence(error)
            for secret in filter(None, _secrets(self._said)):
                sentence = sentence.replace(secret, "***")
            # After a lost response the result of a commit is unknown: the table is read again.
            if isinstance(error, _PASSING) and not isinstance(error, _LASTING):
                raise Conflict(sentence) from None
            raise CommitError(f"the Iceberg table {self.table}: {sentence}") from None

    def _own_catalog(self, make: bool) -> dict[str, Any]:
        path = f"{self._place.tier.folder}/{CATALOG_FILE}"
        if make:
            os.makedirs(os.path.dirname(path), exist_ok=True)
        if not make and not os.path.exists(path):
            return {"type": "in-memory"}  # there is no table
        return {"type": "sql", "uri": str(URL.create("sqlite", database=path))}


def replace_variables(said: Mapping[str, Any]) -> dict[str, Any]:
    """Replace ${NAME} by values of the environment, also in nested sections. Raises JobError."""

    def of(name: str, value: Any) -> Any:
        if isinstance(value, Mapping):
            return {inner: of(f"{name}.{inner}", one) for inner, one in value.items()}
        if isinstance(value, str):
            return VARIABLE.sub(lambda match: _variable(name, match[1]), value)
        return value

    return {name: of(name, value) for name, value in said.items()}


def _variable(key: str, name: str) -> str:
    value = os.environ.get(name, "")
    if not value:
        raise JobError(
            f"[table] catalog {key} takes ${{{name}}} from the environment, where it is not set"
        )
    return value


def same_place(one: str, other: str) -> bool:
    """Return True if two URLs of a table mean the same location: catalogs write them
    differently."""

    def plain(url: str) -> str:
        url = re.sub(r"^s3[an]://", "s3://", url)
        return re.sub(r"^(file:)?/+", "file:///", url).rstrip("/")

    return plain(one) == plain(other)


def _guard(catalog: Catalog) -> None:
    """Check after a rejected commit whether the table has it, because a proxy may have sent it
    twice.

    The library trusts the rejection and deletes the files of the commit's metadata.
    """
    commit = catalog.commit_table

    def commit_table(
        table: PyIcebergTable,
        requirements: tuple[TableRequirement, ...],
        updates: tuple[TableUpdate, ...],
    ) -> CommitTableResponse:
        try:
            return commit(table, requirements, updates)
        except CommitFailedException as error:
            made = {
                one.snapshot.snapshot_id for one in updates if isinstance(one, AddSnapshotUpdate)
            }
            there = catalog.load_table(table.name()).metadata.snapshots if made else ()
            if made.intersection(one.snapshot_id for one in there):
                raise CommitStateUnknownException(str(error)) from error
            raise

    vars(catalog)["commit_table"] = commit_table


class _Bounded(requests.Session):
    """HTTP adapter of REST catalogs with time limits, which the library does not set. The job's
    certificates take precedence over those of the environment (REQUESTS_CA_BUNDLE)."""

    def send(self, request: requests.PreparedRequest, **kwargs: Any) -> requests.Response:
        kwargs["timeout"] = kwargs.get("timeout") or TIMEOUT_S
        if isinstance(self.verify, str):
            kwargs["verify"] = self.verify
        return super().send(request, **kwargs)


vars(rest)["Session"] = _Bounded

# Another commit was first, or the result is unknown.
_PASSING = (
    CommitFailedException,
    CommitStateUnknownException,
    TableAlreadyExistsError,
    ValidationException,
    IntegrityError,
    OperationalError,
    ServerError,
    ServiceUnavailableError,
    TooManyRequestsError,
    requests.ConnectionError,
    requests.Timeout,
    requests.exceptions.ChunkedEncodingError,
)
_LASTING = (requests.exceptions.SSLError,)
"""Permanent errors among them: a certificate is not valid a second later."""


def _sentence(error: BaseException) -> str:
    text: Any = str(error).strip()
    return text.splitlines()[0][:300] if text else type(error).__name__


def _secrets(said: Mapping[str, Any]) -> Iterator[str]:
    """Return secrets to remove from messages: values of variables, and those in the job itself."""
    for name, value in said.items():
        if isinstance(value, Mapping):
            yield from _secrets(value)
            continue
        yield from (os.environ.get(one, "") for one in VARIABLE.findall(str(value)))
        if is_secret(name, str(value)):
            yield str(value)
            yield str(value).partition(":")[2]  # of a credential ID:SECRET
            yield from _PASSWORD.findall(str(value))


_PASSWORD = re.compile(r"://[^/@]*:([^/@]*)@")
