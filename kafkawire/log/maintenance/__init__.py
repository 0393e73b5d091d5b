"""Periodic work of a log: retention and checkpoints.

Retention moves log starts, in SQL first. Partitions with something in the journals are checked
every few minutes; for all others SQL is asked whose oldest mapping row is due. Rows below a log
start are removed afterwards, and by then mean nothing. A checkpoint waits for the commit that
covers its log position before it is written.
"""
