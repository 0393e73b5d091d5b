"""The revision of the tables, for modules that do not import SQLAlchemy."""

REVISION = "0014"  # numbers, so that older and newer compare without Alembic
VERSION_TABLE = "kafkawire_revision"  # not Alembic's name: a database may be shared with others

ORPHANED = -1
"""offset_mappings.due_ms of a deleted topic, set by the transaction that deletes it."""

MISMATCH = "does not match its checksum"
"""In the errors of the triggers of `checksums`, and of damaged rows that were read."""

UNCHECKED = {
    "broker_heartbeats": "written each second; a wrong number is one more sign of life",
    VERSION_TABLE: "read before the other tables are known; another revision is refused",
}
"""Tables without checksums, and why damage there loses nothing."""
