"""Variants in Python: score and mask functions with FlexAttention's signatures, lowered to C++ functors.

    causal_bias = Variant.from_mods("bias", score_mod=lambda score, b, h, q, kv: score - 0.1 * (q - kv))

`descriptor` says what such a variant is and imports no torch; `trace` records a function as a graph, `lower` and `ops`
print it as C++, `captures` finds the tensors it closes over, `ranges` infers which keys a mask keeps.
"""
