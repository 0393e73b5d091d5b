"""The metadata of the cluster in SQL: topics, partitions, configs, brokers, checkpoints."""
