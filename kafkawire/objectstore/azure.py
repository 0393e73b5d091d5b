"""The plug-in for Azure Blob Storage: URLs `azure://ACCOUNT/CONTAINER/PREFIX`.

ACCOUNT is the name of a storage account, or its host. The option `endpoint` is another address, in
which the account is the first part of each path (Azurite, Azure Stack). Credentials come from the
environment, the first that is set: AZURE_STORAGE_CONNECTION_STRING (of which only key or signature
are used), AZURE_STORAGE_KEY, AZURE_STORAGE_SAS_TOKEN; else from azure-identity if it is installed
(managed identities, `az login`).
"""

from __future__ import annotations

import os
import re
from collections.abc import Mapping

from kafkawire.extras import need
from kafkawire.objectstore.port import Opening, Provider
from kafkawire.objectstore.url import TierUrl

_ACCOUNT = re.compile(r"[a-z0-9]{3,24}|[a-z0-9.-]+\.[a-z]+")
_CONTAINER = re.compile(r"(\$root|[a-z0-9](-?[a-z0-9]){2,62})")
HOST = "blob.core.windows.net"


class AzureStores:
    """A StorePlugin (kafkawire.objectstore.port)."""

    def check(self, tier: TierUrl) -> None:
        """Raise ValueError for an invalid account or container, MissingExtra without Azure's
        package."""
        if tier.options:
            raise ValueError(
                f"the option {tier.options[0][0]!r} is not known: create and endpoint are"
            )
        if not _ACCOUNT.fullmatch(tier.bucket):
            raise ValueError(
                f"{tier.bucket!r} is no storage account: azure://ACCOUNT/CONTAINER/PREFIX"
            )
        container = container_of(tier)
        if not _CONTAINER.fullmatch(container):
            raise ValueError(
                f"{container!r} is no container, 3 to 63 lower case letters, digits and single "
                "hyphens: azure://ACCOUNT/CONTAINER/PREFIX"
            )
        need("azure", f"azure://{tier.bucket}")

    def open(self, tier: TierUrl, opening: Opening) -> Provider:
        from kafkawire.objectstore.azure_blob import AzureProvider  # imports Azure's package

        return AzureProvider(
            account_url(tier), container_of(tier), tier.prefix.partition("/")[2], tier.create,
            read_credential(os.environ), opening,
        )  # fmt: skip


PLUGIN = AzureStores()


def container_of(tier: TierUrl) -> str:
    return tier.prefix.partition("/")[0]


def account_url(tier: TierUrl) -> str:
    if tier.endpoint:
        return f"{tier.endpoint}/{tier.bucket}"
    return f"https://{tier.bucket}" + ("" if "." in tier.bucket else f".{HOST}")


def read_credential(environ: Mapping[str, str]) -> str | None:
    """Return the account's key or the signature (SAS) of the environment; None if it has none."""
    stated = environ.get("AZURE_STORAGE_CONNECTION_STRING", "")
    parts = dict(part.partition("=")[::2] for part in stated.split(";"))
    return (
        parts.get("AccountKey")
        or parts.get("SharedAccessSignature")
        or environ.get("AZURE_STORAGE_KEY")
        or environ.get("AZURE_STORAGE_SAS_TOKEN")
        or None
    )
