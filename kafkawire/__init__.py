"""kafkawire: a Kafka-wire-compatible broker in Python."""
