"""Learned attention sinks, as in gpt-oss."""
