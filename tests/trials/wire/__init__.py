"""Trial `wire`: extreme but valid requests of every API and version, and garbage."""
