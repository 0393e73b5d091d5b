"""ApiVersions (key 18): which APIs and versions the broker serves."""

from __future__ import annotations

from typing import Annotated

from kafkawire.codec.schema import ignorable, request, response, since, struct, tag
from kafkawire.codec.types import UnknownTags, int16, int32, int64


@request(key=18, versions=(0, 5), flexible_from=3)
class ApiVersionsRequest:
    """v3 adds the client's name and version; v5 cluster and node it means to reach (KIP-1242)."""

    client_software_name: Annotated[str, since(3), ignorable] = ""
    client_software_version: Annotated[str, since(3), ignorable] = ""
    cluster_id: Annotated[str | None, since(5), ignorable] = None
    node_id: Annotated[int32, since(5), ignorable] = -1
    unknown_tags: UnknownTags = None


@struct
class ApiVersion:
    """The range served of one API."""

    api_key: int16 = 0
    min_version: int16 = 0
    max_version: int16 = 0
    unknown_tags: UnknownTags = None


@struct
class SupportedFeatureKey:
    """A feature the broker knows, with its range."""

    name: str = ""
    min_version: int16 = 0
    max_version: int16 = 0
    unknown_tags: UnknownTags = None


@struct
class FinalizedFeatureKey:
    """A feature the cluster has switched on, with its range."""

    name: str = ""
    max_version_level: int16 = 0
    min_version_level: int16 = 0
    unknown_tags: UnknownTags = None


@response(key=18, versions=(0, 5), flexible_from=3)
class ApiVersionsResponse:
    """The ranges served, and features.

    An unknown version is answered with v0 and UNSUPPORTED_VERSION (KIP-511). v1 adds the throttle
    time; v3 features; v4 allows features whose lowest version is 0 (KAFKA-17011).
    """

    error_code: int16 = 0
    api_keys: list[ApiVersion] = []
    throttle_time_ms: Annotated[int32, since(1)] = 0
    supported_features: Annotated[list[SupportedFeatureKey], since(3), tag(0)] = []
    finalized_features_epoch: Annotated[int64, since(3), tag(1)] = -1
    finalized_features: Annotated[list[FinalizedFeatureKey], since(3), tag(2)] = []
    zk_migration_ready: Annotated[bool, since(3), tag(3)] = False
    unknown_tags: UnknownTags = None
