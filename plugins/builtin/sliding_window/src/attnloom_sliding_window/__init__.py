"""Sliding-window attention, left and right."""
