"""Bridges from attnloom to model libraries. Nothing here is imported until it is asked for."""
