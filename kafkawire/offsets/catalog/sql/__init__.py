"""The segment catalog in the database of the metadata."""
