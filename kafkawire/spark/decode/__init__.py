"""Record batches to Arrow batches at native speed. `decoder.Decoder` is the interface."""
