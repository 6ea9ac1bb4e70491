"""Speculation trees: Medusa and EAGLE drafts, one tree a request."""
