"""The bound of positions that inferred ranges are proved for."""

LIMIT = 1 << 28
"""Positions, and integers added to them, are taken to lie within +-`LIMIT`."""
