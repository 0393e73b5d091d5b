"""Tests of kafkawire.security.sasl."""
