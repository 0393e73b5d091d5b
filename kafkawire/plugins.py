"""Plug-ins: objects of installed distributions, found by their entry points (importlib.metadata).

A plug-in is loaded by name, only when a setting or URL names it. It is code of others: that it is
missing, raises or does not return becomes a PluginError with one sentence, which names the plug-in
and its distribution.
"""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from importlib.metadata import EntryPoint

STORES = "kafkawire.stores"
"""Object stores by URL scheme: a `StorePlugin` (kafkawire.objectstore.port)."""
OFFSET_STORAGES = "kafkawire.offset_storages"
"""Values of offset.storage: an `OffsetStorePlugin` (kafkawire.offsets.catalog.kv.store)."""
HOOKS = "kafkawire.hooks"
"""Values of plugin.hooks: a class derived from `BrokerHooks` (kafkawire.hooks)."""
LOAD_LIMIT_S = 30.0
"""Time limit for an import, which a start waits for."""

_loaded: dict[tuple[str, str], Any] = {}


class PluginError(ValueError):
    """A plug-in cannot be used: one sentence."""


def list_plugins(group: str) -> list[str]:
    """Return the installed plug-ins of a group as `NAME (DISTRIBUTION)`, by name."""
    return sorted(map(_describe, _find(group)))


def has_plugin(group: str, name: str) -> bool:
    return (group, name) in _loaded or bool(_find(group, name))


def load_plugin(group: str, name: str) -> Any:
    """Return the object of an entry point; it is imported once. Raises PluginError."""
    if (group, name) not in _loaded:
        found = _find(group, name)
        # An editable install may be found twice, by its metadata and by its source folder.
        if len({(each.value, _distribution(each)) for each in found}) > 1:
            raise PluginError(
                f"{group} has two plug-ins of one name: {', '.join(map(_describe, found))}: "
                "uninstall one of them"
            )
        if not found:
            raise PluginError(f"{group} has no plug-in {name!r}: {installed_words(group)}")
        _loaded[group, name] = _import(group, found[0])
    return _loaded[group, name]


def installed_words(group: str) -> str:
    """Return what is installed, as the end of a sentence."""
    return f"installed are {', '.join(list_plugins(group)) or 'none'}"


def call_plugin(what: str, call: Any, limit_s: float = LOAD_LIMIT_S) -> Any:
    """Return the result of `call()`, code of a plug-in that is described by `what`. Raises
    PluginError if it raises anything, or takes longer than the limit; its thread is then left."""
    result: list[Any] = []
    failure: list[BaseException] = []

    def run() -> None:
        try:
            result.append(call())
        except BaseException as problem:  # SystemExit too: it must not end the broker
            failure.append(problem)

    # A daemon: a call that never returns must not hold the end of the process.
    thread = threading.Thread(target=run, name=f"load {what}", daemon=True)
    thread.start()
    thread.join(limit_s)
    if failure:
        raise PluginError(f"{what} cannot be used: {sentence_of(failure[0])}") from None
    if not result:
        raise PluginError(f"{what} cannot be used: it does not return within {limit_s:g} s")
    return result[0]


def sentence_of(failure: BaseException) -> str:
    """Return the failure of a plug-in in one line."""
    from kafkawire.extras import explain

    known = explain(failure) if isinstance(failure, ModuleNotFoundError) else None
    text = known or f"{type(failure).__name__}: {failure}"
    return " ".join(text.split())[:500].removesuffix(":")


def describe_plugin(group: str, name: str) -> str:
    """Return a plug-in with its group and distribution, for messages."""
    found = _find(group, name)
    return f"the plug-in {_describe(found[0]) if found else name} of {group}"


def _find(group: str, name: str = "") -> list[EntryPoint]:
    from importlib.metadata import entry_points  # 9 ms, which a start without plug-ins saves

    return [each for each in entry_points(group=group) if each.name == name or not name]


def _import(group: str, entry: EntryPoint) -> Any:
    return call_plugin(f"the plug-in {_describe(entry)} of {group}", entry.load)


def _describe(entry: EntryPoint) -> str:
    return f"{entry.name} ({_distribution(entry)})"


def _distribution(entry: EntryPoint) -> str:
    return entry.dist.name if entry.dist is not None else entry.value
