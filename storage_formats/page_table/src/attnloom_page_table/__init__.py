"""KV-cache pages addressed by a block table, padded or ragged."""
