"""What the cluster knows, in SQL: topics, partitions, configs, brokers, checkpoints."""
