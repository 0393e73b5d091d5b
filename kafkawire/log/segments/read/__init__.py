"""Reading segments: indexes in memory, and reads of files and of remote objects."""
