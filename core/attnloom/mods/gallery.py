"""Attention variants from papers and models, as score and mask functions for `Variant.from_mods`.

Each function makes a mod of the numbers and tensors that the variant needs. `docs/variants.md` shows them with formulas
and pictures; the tests hold each to a plain float64 computation.
"""

from __future__ import annotations

import math

import torch


def causal():
    """A query sees its own position and what is before it."""

    def mask(b, h, q_idx, kv_idx):
        return kv_idx <= q_idx

    return mask


def prefix_lm(prefix_len: torch.Tensor):
    """A prefix that all see, then causal; `prefix_len` is [requests]. T5's and PaliGemma's prefix language model."""

    def mask(b, h, q_idx, kv_idx):
        return (kv_idx < prefix_len[b]) | (kv_idx <= q_idx)

    return mask


def sliding_window(window: int):
    """A query sees itself and `window` older positions: Mistral (arXiv:2310.06825)."""

    def mask(b, h, q_idx, kv_idx):
        return (kv_idx <= q_idx) & (q_idx - kv_idx <= window)

    return mask


def dilated_window(window: int, step: int):
    """Every `step`-th position at most `window` away: the dilated window of Longformer (arXiv:2004.05150)."""

    def mask(b, h, q_idx, kv_idx):
        distance = q_idx - kv_idx
        return (torch.abs(distance) <= window) & (distance % step == 0)

    return mask


def document(document_id: torch.Tensor):
    """Packed documents that do not see each other, causal inside; `document_id` is [positions]."""

    def mask(b, h, q_idx, kv_idx):
        return (document_id[q_idx] == document_id[kv_idx]) & (kv_idx <= q_idx)

    return mask


def global_local(window: int, num_global: int):
    """Near positions, and `num_global` first ones that see all and that all see: Longformer (arXiv:2004.05150)."""

    def mask(b, h, q_idx, kv_idx):
        local = torch.abs(q_idx - kv_idx) <= window
        return local | (kv_idx < num_global) | (q_idx < num_global)

    return mask


def streaming_sinks(num_sinks: int, window: int):
    """The first positions and a window: StreamingLLM (arXiv:2309.17453)."""

    def mask(b, h, q_idx, kv_idx):
        return (kv_idx <= q_idx) & ((kv_idx < num_sinks) | (q_idx - kv_idx < window))

    return mask


def chunked(chunk: int):
    """Causal inside chunks of the sequence: the local layers of Llama 4."""

    def mask(b, h, q_idx, kv_idx):
        return (q_idx // chunk == kv_idx // chunk) & (kv_idx <= q_idx)

    return mask


def neighborhood_2d(height: int, width: int, kernel: int):
    """The `kernel` x `kernel` pixels around a pixel of an image, row after row, moved to stay inside: NATTEN
    (arXiv:2204.07143)."""
    radius = kernel // 2

    def mask(b, h, q_idx, kv_idx):
        row = torch.clamp(q_idx // width, radius, height - 1 - radius)
        column = torch.clamp(q_idx % width, radius, width - 1 - radius)
        near_row = torch.abs(row - kv_idx // width) <= radius
        return near_row & (torch.abs(column - kv_idx % width) <= radius)

    return mask


def tree(prefix_len: int, ancestors: torch.Tensor):
    """A draft tree after a prefix; `ancestors[i, j]` says whether node j is i or above it. SpecInfer
    (arXiv:2305.09781)."""

    def mask(b, h, q_idx, kv_idx):
        node, other = torch.clamp(q_idx - prefix_len, min=0), torch.clamp(kv_idx - prefix_len, min=0)
        return (kv_idx <= q_idx) & ((kv_idx < prefix_len) | ancestors[node, other])

    return mask


def block_diffusion(length: int, block: int):
    """Noised tokens [0, length) and clean ones [length, 2 length), in blocks: a noised block sees itself and the clean
    blocks before it, a clean block the clean ones up to it. BD3-LM (arXiv:2503.09573)."""

    def mask(b, h, q_idx, kv_idx):
        q_noised, kv_noised = q_idx < length, kv_idx < length
        q_block = torch.where(q_noised, q_idx, q_idx - length) // block
        limit = torch.where(q_noised, q_block, q_block + 1)
        own_block = q_noised & kv_noised & (kv_idx // block == q_block)
        return own_block | (~kv_noised & ((kv_idx - length) // block < limit))

    return mask


def alibi(slopes: torch.Tensor):
    """A penalty that grows with distance, at `slopes` [heads] a position: arXiv:2108.12409."""

    def score(score, b, h, q_idx, kv_idx):
        return score + slopes[h] * (kv_idx - q_idx)

    return score


def t5_buckets(num_buckets: int, max_distance: int) -> torch.Tensor:
    """T5's bucket of each distance from 0 to `max_distance`, int32: half of them one a distance, the rest
    logarithmic."""
    exact = num_buckets // 2
    buckets = list(range(exact))
    for distance in range(exact, max_distance + 1):
        share = math.log(distance / exact) / math.log(max_distance / exact)
        buckets.append(min(exact + int(share * (num_buckets - exact)), num_buckets - 1))
    return torch.tensor(buckets, dtype=torch.int32)


def t5_bias(table: torch.Tensor, buckets: torch.Tensor):
    """A learned bias for each head and bucket of distance, `table` [heads, buckets]: T5 (arXiv:1910.10683), decoder."""
    farthest = len(buckets) - 1

    def score(score, b, h, q_idx, kv_idx):
        distance = torch.clamp(q_idx - kv_idx, 0, farthest)
        return score + table[h, buckets[distance]]

    return score


def kerple(r1: torch.Tensor, r2: torch.Tensor):
    """A logarithmic penalty of distance, `r1` and `r2` positive, [heads]: KERPLE (arXiv:2205.09921)."""

    def score(score, b, h, q_idx, kv_idx):
        return score - r1[h] * torch.log(1 + r2[h] * torch.abs(q_idx - kv_idx))

    return score


def soft_cap(cap: float):
    """Logits saturate at +-`cap`: Gemma 2 (arXiv:2408.00118)."""

    def score(score, b, h, q_idx, kv_idx):
        return cap * torch.tanh(score / cap)

    return score


def forgetting(log_forget: torch.Tensor):
    """Keys fade by the forget gates since them; `log_forget` [heads, positions] is the running sum of the gates'
    logarithms. Forgetting Transformer (arXiv:2503.02130)."""

    def score(score, b, h, q_idx, kv_idx):
        return score + log_forget[h, q_idx] - log_forget[h, kv_idx]

    return score


def temperature(scale: float, floor: int):
    """Logits grow with the logarithm of the query's position: the layers of Llama 4 that know no position otherwise."""

    def score(score, b, h, q_idx, kv_idx):
        return score * (1 + scale * torch.log1p((q_idx + 1) // floor))

    return score
