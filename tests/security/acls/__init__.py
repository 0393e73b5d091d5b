"""Tests of kafkawire.security.acls."""
