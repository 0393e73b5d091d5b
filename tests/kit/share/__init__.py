"""Fakes and helpers of the tests of share partitions."""
