"""The former name of kafkawire_spark, which stays until version 0.3."""

from __future__ import annotations

from kafkawire.extras import need

need("spark", "kafkawire.spark", ("kafkawire_spark",))  # a distribution of its own

from kafkawire_spark import register  # noqa: E402

__all__ = ["register"]
