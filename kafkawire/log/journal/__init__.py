"""Journals: the files every append is written to first, their format, index and ledger."""
