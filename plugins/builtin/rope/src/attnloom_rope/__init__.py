"""Rotary position embedding: linear, Llama-3.1 and YaRN scaling, half-split or interleaved pairs."""
