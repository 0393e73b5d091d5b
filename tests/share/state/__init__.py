"""Tests of kafkawire.share.state."""
