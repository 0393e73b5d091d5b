"""Commands about access rules."""
