"""Followers, and which of them have all that a broker has acknowledged.

Frozen: it says what revision 0011 was, whatever tables.py says later.
"""

import sqlalchemy as sa
from alembic import op

revision = "0011"
down_revision = "0010"


def upgrade() -> None:
    """Add two tables: no broker has followers."""
    op.create_table(
        "followers",
        sa.Column("replica_id", sa.Text, primary_key=True),
        sa.Column("node_id", sa.Integer, nullable=False),
        sa.Column("host", sa.Text, nullable=False),
        sa.Column("port", sa.Integer, nullable=False),
        sa.Column("secret", sa.LargeBinary(32), nullable=False),
        sa.Column("changed_ms", sa.BigInteger, nullable=False),
    )
    op.create_table(
        "replica_sets",
        sa.Column("node_id", sa.Integer, primary_key=True, autoincrement=False),
        sa.Column("broker_epoch", sa.BigInteger, nullable=False),
        sa.Column("in_sync", sa.Text, nullable=False),
        sa.Column("version", sa.BigInteger, nullable=False),
        sa.Column("changed_ms", sa.BigInteger, nullable=False),
    )
