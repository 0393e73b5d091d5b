"""Shared parts of the commands: options, partitions, times, tables, JSON and errors.

Imports no command; every command imports from here. Add a notation (of a partition, a time, a
size) here and not in a command, so that it is the same everywhere.
"""
