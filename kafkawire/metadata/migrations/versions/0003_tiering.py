"""Tiering: objects in the remote tier, where segments are, how far partitions are tiered.

Frozen: it says what revision 0003 was, whatever tables.py says later.
"""

import sqlalchemy as sa
from alembic import op

revision = "0003"
down_revision = "0002"

NUMBER = sa.BigInteger().with_variant(sa.Integer, "sqlite")


def upgrade() -> None:
    """Make the tables. Every segment there is has its file and nothing else."""
    one, none = sa.text("1"), sa.text("0")
    op.add_column("segments", sa.Column("local", sa.Integer, nullable=False, server_default=one))
    op.add_column("segments", sa.Column("object", sa.LargeBinary(16)))
    op.add_column("segments", sa.Column("tier", sa.Integer, nullable=False, server_default=none))
    op.create_table(
        "remote_objects",
        sa.Column("uuid", sa.LargeBinary(16), primary_key=True),
        _big("segment_id"),
        _int("node_id"),
        _int("tier"),
        _int("state"),
        _big("size_bytes"),
        _big("created_ms"),
        _big("delete_after_ms"),
        sa.Column("ranges", sa.LargeBinary, nullable=False),
        sqlite_with_rowid=False,
    )
    op.create_index("remote_objects_state", "remote_objects", ["node_id", "state"])
    op.create_index("remote_objects_segment", "remote_objects", ["segment_id"])
    op.create_table(
        "tiering_offsets",
        sa.Column("partition_number", NUMBER, sa.ForeignKey("partitions.number"), primary_key=True),
        _big("dispatch_offset"),
        _big("commit_offset"),
        _big("updated_at"),
    )
    op.create_table(
        "tiers",
        sa.Column("id", sa.Integer, primary_key=True, autoincrement=False),
        sa.Column("url", sa.Text, nullable=False),
        _int("state"),
        _big("created_ms"),
    )


def _big(name: str) -> sa.Column[int]:
    return sa.Column(name, sa.BigInteger, nullable=False)


def _int(name: str) -> sa.Column[int]:
    return sa.Column(name, sa.Integer, nullable=False)
