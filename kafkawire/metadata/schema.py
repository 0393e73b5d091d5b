"""The revision of the tables, for modules that do not import SQLAlchemy."""

REVISION = "0012"  # numbers, so that older and newer compare without Alembic
VERSION_TABLE = "kafkawire_revision"  # not Alembic's name: a database may be shared with others

ORPHANED = -1
"""offset_mappings.due_ms of a deleted topic, set by the transaction that deletes it."""
