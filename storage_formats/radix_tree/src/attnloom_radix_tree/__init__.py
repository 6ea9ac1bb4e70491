"""A radix tree of shared prefixes over KV-cache pages."""
