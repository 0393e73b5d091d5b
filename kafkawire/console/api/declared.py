"""Declarations of operations, and the OpenAPI document made from them. Pure."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Any, NamedTuple

from starlette.requests import Request
from starlette.responses import Response

Schema = Mapping[str, Any]
Handler = Callable[[Request], Awaitable[Response]]

TEXT: Schema = {"type": "string"}
INTEGER: Schema = {"type": "integer", "format": "int64"}
FLAG: Schema = {"type": "boolean"}


def nullable(schema: Schema) -> Schema:
    """Return a schema that allows null, too."""
    return {"anyOf": [schema, {"type": "null"}]}


def list_of(schema: Schema) -> Schema:
    """Return the schema of a list."""
    return {"type": "array", "items": schema}


def fields(required: Mapping[str, Schema], optional: Mapping[str, Schema] | None = None) -> Schema:
    """Return the schema of an object without other fields."""
    return {
        "type": "object",
        "properties": {**required, **(optional or {})},
        "required": list(required),
        "additionalProperties": False,
    }


def pick(schema: Schema, row: object, **given: object) -> dict[str, Any]:
    """Return an object of a schema: its fields are those that are given, or attributes of `row`."""
    names = schema["properties"]
    return {name: given[name] if name in given else getattr(row, name) for name in names}


class Param(NamedTuple):
    """A parameter in the query of a URL."""

    name: str
    description: str
    schema: Schema = TEXT


class ApiOperation(NamedTuple):
    """A method of a path. `body`: schemas of what it takes, by content type; `answers`: those of
    what it answers, by status; a schema None: no JSON. `socket`: it opens a WebSocket."""

    method: str
    path: str
    name: str
    summary: str
    handler: Handler | None
    params: Sequence[Param] = ()
    body: Mapping[str, Schema] = {}
    answers: Mapping[int, tuple[str, Schema | None]] = {}
    socket: bool = False

    @property
    def in_path(self) -> list[str]:
        """Return the names of the parameters in the path."""
        return [part[1:-1] for part in self.path.split("/") if part.startswith("{")]


ERROR = fields({"error": TEXT})


def openapi(operations: Sequence[ApiOperation]) -> dict[str, Any]:
    """Return the OpenAPI 3.1 document."""
    paths: dict[str, dict[str, Any]] = {}
    for each in operations:
        paths.setdefault(each.path, {})[each.method.lower()] = _describe(each)
    return {
        "openapi": "3.1.0",
        "info": {"title": "kafkawire console", "version": "1"},
        "servers": [{"url": "/"}],
        "security": [{}, {"basic": []}],
        "paths": paths,
        "components": {
            "schemas": {"Error": ERROR},
            "securitySchemes": {"basic": {"type": "http", "scheme": "basic"}},
        },
    }


def _describe(operation: ApiOperation) -> dict[str, Any]:
    answers: dict[str, Any] = {
        "default": {
            "description": "An error, in a sentence.",
            "content": _content({"application/json": {"$ref": "#/components/schemas/Error"}}),
        }
    }
    for status, (text, schema) in operation.answers.items():
        answers[str(status)] = {"description": text}
        if schema is not None:
            answers[str(status)]["content"] = _content({"application/json": schema})
    described: dict[str, Any] = {
        "operationId": operation.name,
        "summary": operation.summary,
        "parameters": [
            *({"name": name, "in": "path", "required": True, "schema": TEXT}
              for name in operation.in_path),
            *({"name": each.name, "in": "query", "description": each.description,
               "schema": each.schema} for each in operation.params),
        ],
        "responses": answers,
    }  # fmt: skip
    if operation.body:
        described["requestBody"] = {"required": True, "content": _content(operation.body)}
    return described


def _content(schemas: Mapping[str, Schema]) -> dict[str, Any]:
    return {kind: {"schema": schema} for kind, schema in schemas.items()}
