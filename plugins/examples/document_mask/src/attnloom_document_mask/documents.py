"""From the lengths of packed documents to the parameters of `document_mask`."""

import numpy as np
from attnloom.errors import ParamError


def from_lengths(lengths) -> dict[str, np.ndarray]:
    """The parameters of a batch, by name without `document_mask.`.

    Args:
        lengths: for each request the lengths of its documents, in order; they add up to its keys.
    """
    ids, first = [np.zeros(0, np.int32)], [np.zeros(0, np.int32)]
    for own in lengths:
        own = np.asarray(own, np.int64).reshape(-1)
        ids.append(np.repeat(np.arange(len(own)), own).astype(np.int32))
        first.append(np.repeat(np.cumsum(own) - own, own).astype(np.int32))
    begin = np.cumsum([0, *(int(np.sum(own)) for own in lengths)])
    return {"ids": np.concatenate(ids), "first": np.concatenate(first), "begin": begin.astype(np.int64)}


def check(spec, params) -> None:
    """Raise `ParamError` where the three do not fit each other. Tensors on a device are taken on trust."""
    ids, first, begin = params["ids"], params["first"], params["begin"]
    if ids.shape != first.shape:
        raise ParamError(f"document_mask.ids has {ids.shape[0]} key(s), document_mask.first has {first.shape[0]}")
    if begin.on_host:
        offsets = begin.numpy()
        if not len(offsets) or offsets[0] != 0 or (np.diff(offsets) < 0).any() or offsets[-1] != ids.shape[0]:
            raise ParamError(f"document_mask.begin must rise from 0 to {ids.shape[0]}, the length of document_mask.ids")


def example(spec, qo_lens, kv_lens) -> dict[str, np.ndarray]:
    """Documents of up to 12 tokens, for tests."""
    rng = np.random.default_rng(12)
    return from_lengths([_cut(rng, int(kv_len)) for kv_len in kv_lens])


def _cut(rng, tokens: int) -> list[int]:
    lengths = []
    while tokens:
        lengths.append(int(rng.integers(1, min(tokens, 12) + 1)))
        tokens -= lengths[-1]
    return lengths
