"""Checksums of rows (kafkawire.metadata.schema.checksums).

Frozen: it says what revision 0013 was, whatever tables.py says later.
"""

from alembic import op

from kafkawire.metadata.schema.checksums import rebuild

revision = "0013"
down_revision = "0012"

TABLES = (
    "cluster", "brokers", "lead_groups", "topics", "partitions", "partition_moves", "configs",
    "features", "checkpoints", "data_folders", "object_logs", "followers", "replica_sets",
    "partition_offset_checkpoints", "segments", "offset_mappings", "partition_metadata",
    "remote_objects", "tiering_offsets", "tiers", "acls", "scram_credentials", "client_quotas",
    "delegation_tokens", "security_versions",
)  # fmt: skip


def upgrade() -> None:
    """Add the checksums, of what each row says now."""
    for name in TABLES:
        rebuild(op.get_bind(), name)
