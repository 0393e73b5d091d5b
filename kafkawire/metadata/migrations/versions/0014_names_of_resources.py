"""Settings of resources with names of any length: groups.

Frozen: it says what revision 0014 was, whatever tables.py says later.
"""

import sqlalchemy as sa
from alembic import op

from kafkawire.metadata.schema import MISMATCH
from kafkawire.metadata.schema.checksums import rebuild

revision = "0014"
down_revision = "0013"

COLUMNS = "resource_type, resource, name, value"


def upgrade() -> None:
    """Copy the table into one without a length: a generated column depends on the old type."""
    bind = op.get_bind()
    in_sqlite = bind.dialect.name == "sqlite"
    ((damaged,),) = bind.exec_driver_sql("SELECT count(*) FROM configs WHERE NOT configs.intact")
    if damaged:  # the copy would get a valid checksum
        raise ValueError(f"{damaged} rows of configs: each {MISMATCH}")
    op.execute("ALTER TABLE configs RENAME TO configs_before")
    if not in_sqlite:
        op.execute("ALTER TABLE configs_before RENAME CONSTRAINT configs_pkey TO before_pkey")
    op.create_table(
        "configs",
        sa.Column("resource_type", sa.Integer, primary_key=True, autoincrement=False),
        sa.Column("resource", sa.Text, primary_key=True),
        sa.Column("name", sa.Text, primary_key=True),
        sa.Column("value", sa.Text, nullable=False),
        sqlite_with_rowid=False,
    )
    op.execute(f"INSERT INTO configs ({COLUMNS}) SELECT {COLUMNS} FROM configs_before")
    # In PostgreSQL a function has a row of the old table as its argument.
    op.execute("DROP TABLE configs_before" + ("" if in_sqlite else " CASCADE"))
    rebuild(bind, "configs")
