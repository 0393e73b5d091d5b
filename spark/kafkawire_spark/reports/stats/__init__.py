"""Calculations of the reports that need no Spark: measures and the cells of the continuity plot."""
