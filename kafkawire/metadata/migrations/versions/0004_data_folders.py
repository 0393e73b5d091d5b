"""Data folders: which folder each broker's records are in, and how far the metadata had got.

Frozen: it says what revision 0004 was, whatever tables.py says later.
"""

import sqlalchemy as sa
from alembic import op

revision = "0004"
down_revision = "0003"


def upgrade() -> None:
    """Make the table. Its rows are written by the next start of each broker."""
    op.create_table(
        "data_folders",
        sa.Column("node_id", sa.Integer, primary_key=True, autoincrement=False),
        sa.Column("metadata_id", sa.LargeBinary(16), nullable=False),
        sa.Column("generation", sa.BigInteger, nullable=False),
    )
