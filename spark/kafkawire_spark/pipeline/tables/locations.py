"""A table's location as URL and options for the libraries of its format.

Credentials are those of boto3 (environment, profiles, roles).

Which properties of a catalog are secrets, and are neither stored nor shown. Pure.
"""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from kafkawire.objectstore.s3 import Access
    from kafkawire.reading.files.locations import Place


def location(place: Place) -> str:
    """Return the table's root as a URL for Spark's formats, without options."""
    return place.tier.location


def delta_location(place: Place) -> tuple[str, dict[str, str]]:
    """Return URL and storage_options for delta-rs. Creates a missing folder."""
    access = place.access()
    if access is None:
        os.makedirs(place.tier.folder, exist_ok=True)
        return place.tier.folder, {}
    options = {
        "aws_conditional_put": "etag",  # a commit is a PUT "if absent"
        "aws_region": access.region,
    }
    if access.endpoint:
        options["aws_endpoint"] = access.endpoint
        options["aws_allow_http"] = str(access.endpoint.startswith("http://")).lower()
        options["aws_virtual_hosted_style_request"] = str(_virtual(place)).lower()
    options |= _name_credentials(
        access, "aws_access_key_id", "aws_secret_access_key", "aws_session_token"
    )
    return location(place), options


def iceberg_properties(place: Place) -> dict[str, str]:
    """Return the properties of pyiceberg's FileIO."""
    access = place.access()
    if access is None:
        return {}
    found = {"s3.region": access.region}
    if access.endpoint:
        found["s3.endpoint"] = access.endpoint
        found["s3.force-virtual-addressing"] = str(_virtual(place))
    return found | _name_credentials(
        access, "s3.access-key-id", "s3.secret-access-key", "s3.session-token"
    )


def _virtual(place: Place) -> bool:
    """Return True if the host name contains the bucket, which is rare outside AWS."""
    return place.tier.path_style is False


def _name_credentials(access: Access, key: str, secret: str, token: str) -> dict[str, str]:
    said = {key: access.access_key, secret: access.secret_key, token: access.session_token}
    return {name: value for name, value in said.items() if value}


VARIABLE = re.compile(r"\$\{(\w+)\}")
"""Reference to a variable of the environment."""
_LOGIN = re.compile(r"://[^/@]*:[^/@]*@")  # a URL with a password
_SECRET = re.compile("secret|password|token|credential|access.key|session|header", re.IGNORECASE)
_ADDRESS = re.compile("ur[il]$", re.IGNORECASE)  # the address of a token service is no secret


def without_secrets(said: Mapping[str, Any]) -> dict[str, Any]:
    """Return the properties of a catalog that may be stored in the table's folder."""
    return {
        name: without_secrets(value) if isinstance(value, Mapping) else value
        for name, value in said.items()
        if isinstance(value, Mapping) or not is_secret(name, str(value))
    }


def is_secret(name: str, value: str) -> bool:
    """Return True if a catalog property must not be stored. The name of a variable may be."""
    if VARIABLE.search(value):
        return False
    return bool(_LOGIN.search(value) or (_SECRET.search(name) and not _ADDRESS.search(name)))
