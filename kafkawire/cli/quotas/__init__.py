"""Commands about client quotas."""
