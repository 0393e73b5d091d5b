"""The certificates of followers whose connections are encrypted.

Frozen: it says what revision 0012 was, whatever tables.py says later.
"""

import sqlalchemy as sa
from alembic import op

revision = "0012"
down_revision = "0011"


def upgrade() -> None:
    """Add a column: no follower has a certificate."""
    op.add_column(
        "followers", sa.Column("certificate", sa.Text, nullable=False, server_default=sa.text("''"))
    )
