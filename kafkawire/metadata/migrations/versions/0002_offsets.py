"""Offsets: checkpoints under their new name, segments, mappings, statistics.

Frozen: it says what revision 0002 was, whatever tables.py says later.
"""

import sqlalchemy as sa
from alembic import op

revision = "0002"
down_revision = "0001"

NUMBER = sa.BigInteger().with_variant(sa.Integer, "sqlite")

COPY = """
INSERT INTO partition_offset_checkpoints
SELECT number, next_offset, log_start, leader_epochs, producers,
    coalesce((SELECT max(saved_ms) FROM checkpoints), 0)
FROM partition_checkpoints
"""


def upgrade() -> None:
    """Make the tables and moves the checkpoints."""
    op.create_table(
        "partition_offset_checkpoints",
        _number(),
        _big("checkpoint_offset"),
        _big("log_start"),
        sa.Column("leader_epochs", sa.LargeBinary, nullable=False),
        sa.Column("producers", sa.LargeBinary, nullable=False),
        _big("updated_at"),
    )
    op.execute(COPY)
    op.drop_table("partition_checkpoints")
    _segments()
    _mappings()
    op.create_table(
        "partition_metadata",
        _number(),
        _big("created_at"),
        _big("last_activity_at"),
        _big("record_count"),
        _big("total_size"),
    )


def _number() -> sa.Column[int]:
    key = sa.ForeignKey("partitions.number")
    return sa.Column("partition_number", NUMBER, key, primary_key=True)


def _big(name: str) -> sa.Column[int]:
    return sa.Column(name, sa.BigInteger, nullable=False)


def _segments() -> None:
    op.create_table(
        "segments",
        sa.Column("id", NUMBER, primary_key=True),
        sa.Column("uuid", sa.LargeBinary(16), nullable=False, unique=True),
        sa.Column("node_id", sa.Integer, nullable=False),
        sa.Column("state", sa.Integer, nullable=False),
        _big("size_bytes"),
        _big("live_bytes"),
        sa.Column("generation", sa.Integer, nullable=False),
        sa.Column("retention_class", sa.Text, nullable=False),
        _big("created_ms"),
        _big("max_timestamp"),
        _big("delete_after_ms"),
        sqlite_autoincrement=True,
    )
    op.create_index("segments_state", "segments", ["node_id", "state"])


def _mappings() -> None:
    op.create_table(
        "offset_mappings",
        _number(),
        sa.Column("base_offset", sa.BigInteger, primary_key=True, autoincrement=False),
        sa.Column("segment_id", sa.BigInteger, sa.ForeignKey("segments.id"), nullable=False),
        _big("end_offset"),
        _big("start"),
        _big("length"),
        _big("index_start"),
        _big("index_length"),
        _big("index_checksum"),
        _big("max_timestamp"),
        _big("batches"),
        _big("records"),
        _big("due_ms"),
        _big("created_at"),
        sqlite_with_rowid=False,
    )
    op.create_index("offset_mappings_segment", "offset_mappings", ["segment_id"])
    op.create_index("offset_mappings_due", "offset_mappings", ["due_ms"])
