"""Logit soft-capping, as in Gemma 2."""
