"""Delegation tokens.

Frozen: it says what revision 0007 was, whatever tables.py says later.
"""

import sqlalchemy as sa
from alembic import op

revision = "0007"
down_revision = "0006"


def upgrade() -> None:
    """Create the table, without rows."""
    op.create_table(
        "delegation_tokens",
        sa.Column("token_id", sa.Text, primary_key=True),
        sa.Column("key_id", sa.LargeBinary(16), nullable=False),
        sa.Column("owner", sa.Text, nullable=False),
        sa.Column("requester", sa.Text, nullable=False),
        sa.Column("renewers", sa.Text, nullable=False),
        sa.Column("issued_ms", sa.BigInteger, nullable=False),
        sa.Column("expires_ms", sa.BigInteger, nullable=False),
        sa.Column("max_ms", sa.BigInteger, nullable=False),
        sa.Column("salt", sa.LargeBinary, nullable=False),
        sa.Column("iterations", sa.Integer, nullable=False),
        sa.Column("stored_key_256", sa.LargeBinary, nullable=False),
        sa.Column("server_key_256", sa.LargeBinary, nullable=False),
        sa.Column("stored_key_512", sa.LargeBinary, nullable=False),
        sa.Column("server_key_512", sa.LargeBinary, nullable=False),
    )
