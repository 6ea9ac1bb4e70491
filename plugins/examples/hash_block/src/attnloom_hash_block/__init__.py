"""Blocks found by the hash of their tokens, for attnloom."""
