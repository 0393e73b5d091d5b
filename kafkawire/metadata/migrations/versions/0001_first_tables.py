"""The first tables: cluster, brokers, topics, partitions, configs, checkpoints.

Frozen: it says what revision 0001 was, whatever tables.py says later.
"""

import sqlalchemy as sa
from alembic import op

revision = "0001"
down_revision = None

NUMBER = sa.BigInteger().with_variant(sa.Integer, "sqlite")
ALIVE = sa.text("deleted_ms IS NULL")


def upgrade() -> None:
    """Make all tables."""
    op.create_table(
        "cluster",
        sa.Column("id", sa.Integer, primary_key=True, autoincrement=False),
        sa.Column("cluster_id", sa.String(22), nullable=False),
        sa.Column("version", sa.BigInteger, nullable=False),
        sa.Column("next_partition", sa.BigInteger, nullable=False),
        sa.Column("next_producer_id", sa.BigInteger, nullable=False),
        sa.Column("created_ms", sa.BigInteger, nullable=False),
    )
    op.create_table(
        "brokers",
        sa.Column("node_id", sa.Integer, primary_key=True, autoincrement=False),
        sa.Column("rack", sa.Text),
        sa.Column("listeners", sa.Text, nullable=False),
        sa.Column("registered_ms", sa.BigInteger, nullable=False),
    )
    _topics()
    op.create_table(
        "configs",
        sa.Column("resource_type", sa.Integer, primary_key=True, autoincrement=False),
        sa.Column("resource", sa.String(22), primary_key=True),
        sa.Column("name", sa.Text, primary_key=True),
        sa.Column("value", sa.Text, nullable=False),
        sqlite_with_rowid=False,
    )
    _checkpoints()


def _topics() -> None:
    op.create_table(
        "topics",
        sa.Column("id", sa.LargeBinary(16), primary_key=True),
        sa.Column("name", sa.String(249), nullable=False),
        sa.Column("internal", sa.Boolean, nullable=False),
        sa.Column("created_ms", sa.BigInteger, nullable=False),
        sa.Column("deleted_ms", sa.BigInteger),
        sa.Column("version", sa.BigInteger, nullable=False),
        sqlite_with_rowid=False,
    )
    op.create_index(
        "topics_alive",
        "topics",
        ["name"],
        unique=True,
        sqlite_where=ALIVE,
        postgresql_where=ALIVE,
    )
    op.create_index("topics_version", "topics", ["version"])
    op.create_table(
        "partitions",
        sa.Column("number", NUMBER, primary_key=True, autoincrement=False),
        sa.Column("topic_id", sa.LargeBinary(16), sa.ForeignKey("topics.id"), nullable=False),
        sa.Column("idx", sa.Integer, nullable=False),
        sa.Column("leader", sa.Integer, nullable=False),
        sa.Column("leader_epoch", sa.Integer, nullable=False),
        sa.UniqueConstraint("topic_id", "idx", name="partitions_of_topic"),
    )


def _checkpoints() -> None:
    op.create_table(
        "checkpoints",
        sa.Column("node_id", sa.Integer, primary_key=True, autoincrement=False),
        sa.Column("place", sa.BigInteger, nullable=False),
        sa.Column("saved_ms", sa.BigInteger, nullable=False),
    )
    op.create_table(
        "partition_checkpoints",
        sa.Column("number", NUMBER, sa.ForeignKey("partitions.number"), primary_key=True),
        sa.Column("next_offset", sa.BigInteger, nullable=False),
        sa.Column("log_start", sa.BigInteger, nullable=False),
        sa.Column("leader_epochs", sa.LargeBinary, nullable=False),
        sa.Column("producers", sa.LargeBinary, nullable=False),
    )
