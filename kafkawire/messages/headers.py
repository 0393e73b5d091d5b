"""The headers in front of requests and responses; `registry.ApiSpec` says which version applies."""

from __future__ import annotations

from typing import Annotated

from kafkawire.codec.schema import header, inflexible
from kafkawire.codec.types import UnknownTags, int16, int32


@header(versions=(1, 2), flexible_from=2)
class RequestHeader:
    """In front of every request. v2 adds tagged fields.

    The client id keeps its int16 length in v2, so that a broker can read the header of any
    ApiVersions request, even of a version it does not know.
    """

    request_api_key: int16 = 0
    request_api_version: int16 = 0
    correlation_id: int32 = 0
    client_id: Annotated[str | None, inflexible] = ""
    unknown_tags: UnknownTags = None


@header(versions=(0, 1), flexible_from=1)
class ResponseHeader:
    """In front of every response. v1 adds tagged fields."""

    correlation_id: int32 = 0
    unknown_tags: UnknownTags = None
