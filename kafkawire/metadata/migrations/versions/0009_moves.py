"""Planned moves of partitions, the data folder of a broker, the node of a tier.

Frozen: it says what revision 0009 was, whatever tables.py says later.
"""

import sqlalchemy as sa
from alembic import op

revision = "0009"
down_revision = "0008"


def upgrade() -> None:
    """Add a table and two columns: no broker has stored a folder, no tier is of one node."""
    op.create_table(
        "partition_moves",
        sa.Column(
            "partition_number",
            sa.BigInteger().with_variant(sa.Integer, "sqlite"),
            sa.ForeignKey("partitions.number"),
            primary_key=True,
        ),
        sa.Column("target", sa.Integer, nullable=False),
        sa.Column("asked_ms", sa.BigInteger, nullable=False),
    )
    op.add_column("brokers", sa.Column("folder", sa.Text))
    op.add_column("tiers", sa.Column("node_id", sa.Integer))
