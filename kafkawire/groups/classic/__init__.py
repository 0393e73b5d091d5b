"""The classic group protocol: one group's state machine."""
