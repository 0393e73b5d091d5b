"""Start options of the server: listeners, data folder, settings.

Plain data, already checked: the command line (kafkawire.cli) makes it from options, environment
and file, tests make it by hand, kafkawire.server.run takes it. Settings stay text here; their
types, bounds and defaults are in kafkawire.codec.configs.settings.
"""

from __future__ import annotations

from dataclasses import dataclass, field


@dataclass(frozen=True, slots=True)
class Listener:
    """One address to listen on. Port 0: the system chooses a free one."""

    name: str
    host: str
    port: int


@dataclass(frozen=True, slots=True)
class ServeOptions:
    """One broker process.

    `advertised` has an entry for every listener by name: the host and port that Metadata and
    FindCoordinator answer to clients of that listener; port 0 there means the port that was
    bound. `data` is the absolute path of the data folder, `metadata_url` an SQLAlchemy URL (empty:
    SQLite in that folder), `settings` the broker settings that differ from their defaults (name
    -> text, validated).
    """

    listeners: list[Listener]
    advertised: dict[str, tuple[str, int]]
    data: str
    metadata_url: str
    settings: dict[str, str] = field(default_factory=dict)
    log_level: str = "info"
    log_format: str = "text"
