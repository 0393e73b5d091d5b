"""Lead groups: the leader and epoch of many partitions in one row; versions of what lacked one.

Frozen: it says what revision 0008 was, whatever tables.py says later.
"""

import sqlalchemy as sa
from alembic import op

revision = "0008"
down_revision = "0007"


def upgrade() -> None:
    """Create a group for each leader, with its node id and epoch 0. Then the leader of a partition
    is its group, and its leader epoch the base, so no row of a partition is rewritten."""
    op.add_column(
        "cluster",
        sa.Column(
            "broker_configs_version", sa.BigInteger, nullable=False, server_default=sa.text("0")
        ),
    )
    op.add_column(
        "brokers",
        sa.Column("version", sa.BigInteger, nullable=False, server_default=sa.text("0")),
    )
    op.add_column(
        "brokers",
        sa.Column("epoch", sa.BigInteger, nullable=False, server_default=sa.text("0")),
    )
    op.create_table(
        "broker_heartbeats",
        sa.Column("node_id", sa.Integer, primary_key=True, autoincrement=False),
        sa.Column("heartbeats", sa.BigInteger, nullable=False),
    )
    op.create_table(
        "lead_groups",
        sa.Column("id", sa.Integer, primary_key=True, autoincrement=False),
        sa.Column("class", sa.Integer, nullable=False),
        sa.Column("leader", sa.Integer, nullable=False),
        sa.Column("preferred", sa.Integer, nullable=False),
        sa.Column("epoch", sa.Integer, nullable=False),
        sa.Column("version", sa.BigInteger, nullable=False),
    )
    op.execute("ALTER TABLE partitions RENAME COLUMN leader TO lead_group")
    op.execute("ALTER TABLE partitions RENAME COLUMN leader_epoch TO epoch_base")
    op.execute(
        "INSERT INTO lead_groups (id, class, leader, preferred, epoch, version)"
        " SELECT node, 0, node, node, 0, 0 FROM"
        " (SELECT node_id AS node FROM brokers UNION SELECT lead_group FROM partitions) AS nodes"
    )
