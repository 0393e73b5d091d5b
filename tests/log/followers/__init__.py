"""Tests of the protocol of `durability=replicated`."""
