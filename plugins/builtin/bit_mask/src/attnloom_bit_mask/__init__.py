"""A packed, user-given visibility mask."""
