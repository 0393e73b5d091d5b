"""Tests of kafkawire.broker.objects."""
