"""A small client of a schema registry: schemas by id, and by subject and version.

Paths and responses are those of Confluent's Schema Registry, which Karapace and others implement.
User and password come from SCHEMA_REGISTRY_BASIC_AUTH_USER_INFO=USER:PASSWORD in the environment,
or from the URL.
"""

from __future__ import annotations

import base64
import http.client
import json
import os
import time
import urllib.error
import urllib.parse
import urllib.request
from functools import cache
from typing import IO, Any, NamedTuple

from kafkawire.reading.model.source import SourceError, Unreachable

USER_INFO = "SCHEMA_REGISTRY_BASIC_AUTH_USER_INFO"
TIMEOUT_S = 10.0
TRIES = 5  # 0.2 + 0.4 + 0.8 + 1.6 s of waiting; Spark retries the task after that
FIRST_WAIT_S = 0.2
ANSWER_BYTES_MAX = 16 << 20  # a schema of generated code is 1 MiB at most
ERROR_BYTES_MAX = 1 << 16  # a registry's errors are a line of JSON
REFERENCES_MAX = 1000  # referenced by one schema, over all levels
UNKNOWN_MAX = 1000  # unknown ids that are looked up in UNKNOWN_S; a topic of garbage has millions
UNKNOWN_S = 60.0  # a schema may be registered later, and workers of Spark live for days
AVRO, PROTOBUF = "AVRO", "PROTOBUF"


class RegistryError(SourceError):
    """The registry cannot be reached, or its response is invalid; one sentence."""


class RegistryUnavailable(RegistryError, Unreachable):
    """The registry cannot be reached now, or answers that it cannot serve the request now."""


class Reference(NamedTuple):
    """A reference to another schema, with the name of the import."""

    name: str
    subject: str
    version: int


class Schema(NamedTuple):
    """One schema. `text`: as registered; protobuf: a FileDescriptorProto in base64."""

    type: str
    text: str
    references: tuple[Reference, ...] = ()


class Registry:
    """One registry; each schema is requested once, an unknown id once in UNKNOWN_S. Not
    thread-safe."""

    def __init__(self, url: str) -> None:
        """`url`: http(s)://[USER:PASSWORD@]HOST[:PORT][/PATH]. Raises RegistryError."""
        try:
            parts = urllib.parse.urlsplit(url)
            _ = parts.port  # raises ValueError if it is no number
        except ValueError:
            parts = urllib.parse.urlsplit("")
        if parts.scheme not in ("http", "https") or not parts.hostname:
            raise RegistryError("the registry's URL must be like http://HOST:8081")
        # Without user and password: messages show this URL.
        host = parts.netloc.rpartition("@")[2]
        self.url = f"{parts.scheme}://{host}{parts.path}".rstrip("/")
        self._headers = {"Accept": "application/vnd.schemaregistry.v1+json, application/json"}
        user = os.environ.get(USER_INFO, "")
        if parts.username:
            user = ":".join(map(urllib.parse.unquote, (parts.username, parts.password or "")))
        self._sends_user = bool(user)
        if user:
            self._headers["Authorization"] = "Basic " + base64.b64encode(user.encode()).decode()
        self._by_number: dict[int, Schema] = {}
        self._unknown: set[int] = set()
        self._unknown_since = time.monotonic()

    def schema(self, number: int) -> Schema | None:
        """Return the schema of this id; None if there is none. Raises RegistryError."""
        found = self._by_number.get(number)
        if found is not None:
            return found
        if time.monotonic() - self._unknown_since >= UNKNOWN_S:
            self._unknown.clear()
            self._unknown_since = time.monotonic()
        if number in self._unknown or len(self._unknown) >= UNKNOWN_MAX:
            return None
        answer = self._get(f"/schemas/ids/{number}")
        if answer is None:
            self._unknown.add(number)
            return None
        return self._by_number.setdefault(number, _schema(answer))

    def version(self, subject: str, version: str | int = "latest") -> Schema:
        """Return a version of a subject's schema. Raises RegistryError, also if there is none."""
        name = urllib.parse.quote(subject, safe="")
        answer = self._get(f"/subjects/{name}/versions/{version}")
        if answer is None and version == "latest":
            raise RegistryError(
                f"{self.url} has no subject {subject!r}: set subject if the schema is registered "
                "under another name"
            )
        if answer is None:
            raise RegistryError(f"{self.url} has no version {version} of the subject {subject!r}")
        schema, number = _schema(answer), answer.get("id")
        if schema.type == PROTOBUF and isinstance(number, int):
            # Karapace returns the compiled form only by id.
            return self.schema(number) or schema
        return schema

    def fetch_references(self, schema: Schema) -> dict[str, Schema]:
        """Return all schemas that this one references, over all levels, by import name; each after
        the ones it references itself. Raises RegistryError."""
        found: dict[str, Schema] = {}
        self._gather(schema, found, set())
        return found

    def _gather(self, schema: Schema, found: dict[str, Schema], seen: set[str]) -> None:
        for reference in schema.references:
            if reference.name in seen:
                continue
            seen.add(reference.name)
            if len(seen) > REFERENCES_MAX:
                raise RegistryError(f"a schema refers to more than {REFERENCES_MAX} others")
            other = self.version(reference.subject, reference.version)
            self._gather(other, found, seen)
            found[reference.name] = other

    def _get(self, path: str) -> dict[str, Any] | None:
        """Return the response, or None if the resource does not exist. Retries temporary errors."""
        # Protobuf's compiled form: there is no compiler of .proto files here. Other formats ignore
        # it.
        request = urllib.request.Request(
            f"{self.url}{path}?format=serialized", headers=self._headers
        )
        for left in reversed(range(TRIES)):
            try:
                with urllib.request.urlopen(request, timeout=TIMEOUT_S) as response:
                    return _decode_answer(response.read(ANSWER_BYTES_MAX + 1), request.full_url)
            except urllib.error.HTTPError as error:
                with error:
                    if error.code == 404 and _has_error_code(error):
                        return None
                if error.code < 500 and error.code != 429:
                    raise RegistryError(f"{self.url}{path} {self._refusal(error.code)}") from None
                if not left:
                    raise RegistryUnavailable(f"{self.url}{path} answers {error.code}") from None
            except (OSError, http.client.HTTPException) as error:
                if not left:
                    reason = getattr(error, "reason", None) or error or type(error).__name__
                    raise RegistryUnavailable(
                        f"{self.url}{path} cannot be reached: {reason}"
                    ) from None
            time.sleep(FIRST_WAIT_S * 2 ** (TRIES - 1 - left))
        raise AssertionError  # the last attempt returns or raises

    def _refusal(self, status: int) -> str:
        """Return the end of a sentence about a request that is not worth another attempt."""
        if status == 401 and self._sends_user:
            return f"answers 401: the user or the password (of {USER_INFO} or the URL) is wrong"
        if status == 401:
            return f"answers 401: set {USER_INFO}=USER:PASSWORD in the environment"
        if status == 404:
            return "answers 404, but not as a registry does: check the path of the URL"
        return f"answers {status}"


def _has_error_code(response: IO[bytes]) -> bool:
    """Return True if a registry wrote the response: that of a proxy in front of a registry that is
    away says nothing about the schema."""
    try:
        answer = json.loads(response.read(ERROR_BYTES_MAX))
    except (ValueError, OSError, http.client.HTTPException):
        return False
    return isinstance(answer, dict) and "error_code" in answer


def _decode_answer(body: bytes, url: str) -> dict[str, Any]:
    try:
        answer = json.loads(body) if len(body) <= ANSWER_BYTES_MAX else None
    except ValueError:
        answer = None
    if not isinstance(answer, dict) or not isinstance(answer.get("schema"), str):
        raise RegistryError(f"{url} does not answer with a schema, as a registry does")
    return answer


def _schema(answer: dict[str, Any]) -> Schema:
    try:
        references = tuple(
            Reference(str(one["name"]), str(one["subject"]), int(one["version"]))
            for one in answer.get("references") or ()
        )
    except (KeyError, TypeError, ValueError):
        raise RegistryError("the registry's answer has references without a version") from None
    return Schema(str(answer.get("schemaType") or AVRO), answer["schema"], references)


@cache
def registry(url: str) -> Registry:
    return Registry(url)
