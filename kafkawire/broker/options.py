"""Start options of the server: listeners, data folder, settings.

Plain validated data: the command line (kafkawire.cli) creates it from options, environment and
file, for kafkawire.server.run. Settings are strings here; kafkawire.codec.configs.settings has
their types, bounds and defaults.
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
    """The options of one broker process.

    `advertised` has an entry for every listener by name: the host and port that Metadata and
    FindCoordinator return to clients of that listener (port 0: the port that was bound). `data` is
    the absolute path of the data folder, `metadata_url` an SQLAlchemy URL (empty: SQLite in that
    folder), `settings` the broker settings that differ from their defaults (name -> validated
    string).
    """

    listeners: list[Listener]
    advertised: dict[str, tuple[str, int]]
    data: str
    metadata_url: str
    settings: dict[str, str] = field(default_factory=dict)
    log_level: str = "info"
    log_format: str = "text"
