"""Stands for the module that a plugin names by reference."""


def near(b, h, q, kv):
    return q - kv < 5


def half(score, b, h, q, kv):
    return score * 0.5
