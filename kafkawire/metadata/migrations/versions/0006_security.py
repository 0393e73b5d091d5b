"""Access rules, users and quotas.

Frozen: it says what revision 0006 was, whatever tables.py says later.
"""

import sqlalchemy as sa
from alembic import op

revision = "0006"
down_revision = "0005"


def upgrade() -> None:
    """Create the tables, without rows."""
    op.create_table(
        "acls",
        sa.Column("digest", sa.LargeBinary(32), primary_key=True),
        sa.Column("resource_type", sa.Integer, nullable=False),
        sa.Column("resource_name", sa.Text, nullable=False),
        sa.Column("pattern_type", sa.Integer, nullable=False),
        sa.Column("principal", sa.Text, nullable=False),
        sa.Column("host", sa.Text, nullable=False),
        sa.Column("operation", sa.Integer, nullable=False),
        sa.Column("permission", sa.Integer, nullable=False),
    )
    op.create_table(
        "scram_credentials",
        sa.Column("user_name", sa.Text, primary_key=True),
        sa.Column("mechanism", sa.Integer, primary_key=True, autoincrement=False),
        sa.Column("salt", sa.LargeBinary, nullable=False),
        sa.Column("stored_key", sa.LargeBinary, nullable=False),
        sa.Column("server_key", sa.LargeBinary, nullable=False),
        sa.Column("iterations", sa.Integer, nullable=False),
    )
    op.create_table(
        "client_quotas",
        sa.Column("entity", sa.Text, primary_key=True),
        sa.Column("key", sa.Text, primary_key=True),
        sa.Column("value", sa.Double, nullable=False),
    )
    op.create_table(
        "security_versions",
        sa.Column("name", sa.Text, primary_key=True),
        sa.Column("version", sa.BigInteger, nullable=False),
    )
