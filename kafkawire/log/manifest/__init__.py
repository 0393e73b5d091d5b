"""What a manifest says of this broker: gathered from the log, for the bucket and for the folder."""
