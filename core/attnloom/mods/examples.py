"""One of each function of `attnloom.mods.gallery`, for 48 positions and 4 heads: what the pictures of
`docs/variants.md` show. `attnloom plot mask attnloom.mods.examples:chunked` draws one."""

from __future__ import annotations

import torch

from attnloom.mods import gallery

HEADS, LENGTH = 4, 48
_PARENTS = (-1, 0, 0, 1, 1, 2, 3, 5)
"""The node above each node of the draft tree."""


def ancestors(parents) -> torch.Tensor:
    """bool [nodes, nodes]: whether the second node is the first or above it; a node's parent comes before it."""
    above = torch.eye(len(parents), dtype=torch.bool)
    for node, parent in enumerate(parents):
        if parent >= 0:
            above[node] |= above[parent]
    return above


causal = gallery.causal()
prefix_lm = gallery.prefix_lm(torch.tensor([12, 0, 20]))
sliding_window = gallery.sliding_window(9)
dilated_window = gallery.dilated_window(15, 3)
document = gallery.document(torch.tensor([0] * 7 + [1] * 1 + [2] * 20 + [5] * 20))
global_local = gallery.global_local(5, 3)
streaming_sinks = gallery.streaming_sinks(4, 12)
chunked = gallery.chunked(10)
neighborhood_2d = gallery.neighborhood_2d(6, 8, 3)
tree = gallery.tree(LENGTH - len(_PARENTS), ancestors(_PARENTS))
block_diffusion = gallery.block_diffusion(24, 5)
alibi = gallery.alibi(torch.tensor([2.0 ** (-2 * (head + 1)) for head in range(HEADS)]))
t5_bias = gallery.t5_bias(torch.linspace(-2, 2, HEADS * 8).view(HEADS, 8).flip(1), gallery.t5_buckets(8, 32))
kerple = gallery.kerple(torch.tensor([0.5, 1.0, 1.5, 2.0]), torch.tensor([0.1, 0.3, 1.0, 3.0]))
soft_cap = gallery.soft_cap(20.0)
forgetting = gallery.forgetting(
    torch.cumsum(torch.log(torch.sigmoid(torch.linspace(1, 6, HEADS * LENGTH).view(HEADS, LENGTH))), 1)
)
temperature = gallery.temperature(0.1, 8)

MASKS = (
    *("causal", "prefix_lm", "sliding_window", "dilated_window", "document", "global_local", "streaming_sinks"),
    *("chunked", "neighborhood_2d", "tree", "block_diffusion"),
)
"""The names of the masks; `SCORES` those of the rest."""

SCORES = ("alibi", "t5_bias", "kerple", "soft_cap", "forgetting", "temperature")
