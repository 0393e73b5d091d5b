"""A table's place as the libraries of its format want it: a URL and their options.

Credentials are those that boto3 finds (environment, profiles, roles), as everywhere else here.
"""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from kafkawire.spark.source.files.locations import Place


def location(place: Place) -> str:
    """The table's root as a URL that Spark's formats take, without options."""
    tier = place.tier
    if tier.is_s3:
        return f"s3://{tier.bucket}/{tier.prefix}".rstrip("/")
    return f"file://{tier.folder}"


def delta_location(place: Place) -> tuple[str, dict[str, str]]:
    """URL and storage_options for delta-rs. The folder is made if it is missing."""
    if not place.tier.is_s3:
        os.makedirs(place.tier.folder, exist_ok=True)
        return place.tier.folder, {}
    options = {
        "aws_conditional_put": "etag",  # a commit is a PUT of what must not exist
        "aws_region": _region(place),
    }
    endpoint = _endpoint(place)
    if endpoint:
        options["aws_endpoint"] = endpoint
        options["aws_allow_http"] = str(endpoint.startswith("http://")).lower()
        options["aws_virtual_hosted_style_request"] = str(_virtual(place)).lower()
    options |= _named(place, "aws_access_key_id", "aws_secret_access_key", "aws_session_token")
    return location(place), options


def iceberg_properties(place: Place) -> dict[str, str]:
    """Of pyiceberg's FileIO."""
    if not place.tier.is_s3:
        return {}
    found = {"s3.region": _region(place)}
    endpoint = _endpoint(place)
    if endpoint:
        found["s3.endpoint"] = endpoint
        found["s3.force-virtual-addressing"] = str(_virtual(place))
    return found | _named(place, "s3.access-key-id", "s3.secret-access-key", "s3.session-token")


def _session() -> Any:
    import boto3  # a third of a second

    return boto3.session.Session()


def _region(place: Place) -> str:
    return place.tier.region or _session().region_name or "us-east-1"


def _endpoint(place: Place) -> str:
    """What stands in for AWS's own, "" for that."""
    names = ("AWS_ENDPOINT_URL_S3", "AWS_ENDPOINT_URL")
    return place.tier.endpoint or next(filter(None, map(os.environ.get, names)), "")


def _virtual(place: Place) -> bool:
    """Whether the bucket is in the host's name: seldom where it is not AWS's."""
    return place.tier.path_style is False


def _named(place: Place, key: str, secret: str, token: str) -> dict[str, str]:
    found = _session().get_credentials()
    if found is None:
        return {}
    frozen = found.get_frozen_credentials()
    said = {key: frozen.access_key, secret: frozen.secret_key, token: frozen.token}
    return {name: value for name, value in said.items() if value}
