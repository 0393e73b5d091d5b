"""The entry by which Spark registers `format("kafkawire")` by itself.

When a session first looks for a Python data source, Spark imports all installed packages whose
names begin with `pyspark_`, in the Python of its workers, and registers each one's `DefaultSource`.
"""

from __future__ import annotations

import contextlib

with contextlib.suppress(ImportError):  # without the extra: sources of other packages stay usable
    from kafkawire_spark.datasource import KafkawireSource as DefaultSource

__all__ = ["DefaultSource"]
