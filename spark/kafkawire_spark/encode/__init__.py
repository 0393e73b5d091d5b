"""Arrow rows to record batches at native speed. `encoder.encode_batches` is the interface."""
