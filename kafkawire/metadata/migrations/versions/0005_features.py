"""Finalized features: the levels that differ from the default.

Frozen: it says what revision 0005 was, whatever tables.py says later.
"""

import sqlalchemy as sa
from alembic import op

revision = "0005"
down_revision = "0004"


def upgrade() -> None:
    """Create the table. Without rows every feature has its default level."""
    op.create_table(
        "features",
        sa.Column("name", sa.Text, primary_key=True),
        sa.Column("level", sa.Integer, nullable=False),
        sa.Column("epoch", sa.BigInteger, nullable=False),
    )
