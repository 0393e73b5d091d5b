"""Pure formats: wire types, the message compiler, record batches, compression, errors, configs."""
