"""Tests of kafkawire.log.objects."""
