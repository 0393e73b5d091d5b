"""Fakes and helpers of the tests of transactions."""
