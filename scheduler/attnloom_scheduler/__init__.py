"""Lengths in, plan out. Knows no tensor library."""
