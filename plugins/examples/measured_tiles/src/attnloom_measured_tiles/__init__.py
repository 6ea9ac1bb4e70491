"""Tiles from a table of measurements, for attnloom."""
