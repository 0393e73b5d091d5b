"""CRC-32C over any buffer: `crc32c` of the package of this name, without the rest of the package.

The package finds out its own version when it is imported. That imports 40 modules, a twentieth of a
start and 2 MiB of an idle broker.
"""

from __future__ import annotations

from importlib.machinery import PathFinder
from importlib.util import find_spec, module_from_spec
from typing import TYPE_CHECKING, Any

__all__ = ["crc32c"]


def _extension() -> Any:
    """Return the package's extension module, or the package if that has no such module."""
    package = find_spec("crc32c")
    folders = None if package is None else package.submodule_search_locations
    spec = PathFinder.find_spec("crc32c._crc32c", folders)
    if spec is None or spec.loader is None:
        import crc32c as whole

        return whole
    module = module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


if TYPE_CHECKING:
    from crc32c import crc32c
else:
    crc32c = _extension().crc32c
