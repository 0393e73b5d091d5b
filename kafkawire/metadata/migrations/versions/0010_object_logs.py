"""The logs that brokers have in their tiers.

Frozen: it says what revision 0010 was, whatever tables.py says later.
"""

import sqlalchemy as sa
from alembic import op

revision = "0010"
down_revision = "0009"


def upgrade() -> None:
    """Add a table: no broker has stored a log object."""
    op.create_table(
        "object_logs",
        sa.Column("node_id", sa.Integer, primary_key=True, autoincrement=False),
        sa.Column("broker_epoch", sa.BigInteger, primary_key=True, autoincrement=False),
        sa.Column("url", sa.Text, nullable=False),
        sa.Column("released", sa.BigInteger, nullable=False),
        sa.Column("ended", sa.BigInteger),
        sa.Column("changed_ms", sa.BigInteger, nullable=False),
    )
