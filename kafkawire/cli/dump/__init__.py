"""`kafkawire dump`: files of the broker printed for people and programs."""
