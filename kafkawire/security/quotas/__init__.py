"""Quotas: how many bytes, how much time and how many changes a client gets, per broker (KIP-13, 55,
124, 546, 599, 612).

`arithmetic` measures, `entities` and `rules` say which limit counts for whom, `alterations` checks
changes, `store` and `service` keep them in SQL and in memory, `sensors` compares what clients use
with their limits. Nothing here waits: `server.connection` mutes a client that is over its limit.
"""
