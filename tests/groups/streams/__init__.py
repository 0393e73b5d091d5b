"""Tests of streams groups."""
