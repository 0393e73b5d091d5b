"""Which properties of a catalog are secrets, and are neither stored nor shown. Pure."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

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
