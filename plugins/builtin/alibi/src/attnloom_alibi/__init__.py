"""Attention with linear biases (ALiBi), for any head count or user slopes."""
