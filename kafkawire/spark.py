"""The former name of kafkawire_spark, which stays until version 0.3."""

from __future__ import annotations

from kafkawire_spark import register

__all__ = ["register"]
