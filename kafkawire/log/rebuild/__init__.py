"""From journals and segments alone to what SQL would say of them, for `restore --from-log`."""
