"""Steps from one revision of the tables to the next; run by kafkawire.metadata.migrate."""
