"""Tests of kafkawire.transactions.machine."""
