"""pytest plugin: the `kafkawire_broker` fixture."""
