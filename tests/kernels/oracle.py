"""Attention in float64, token by token, over the levels of a handmade batch."""

from __future__ import annotations

from types import SimpleNamespace

import numpy as np


class Plain:
    """A variant without functors; tests override what they compose."""

    use_softmax = True

    def query_transform(self, x, site):
        return x

    key_transform = value_transform = output_transform = query_transform

    def logits_transform(self, x, site):
        return x

    def visible(self, site):
        return np.ones(np.shape(site.kv_pos), bool)

    def row_init(self, site):
        return -np.inf, 0.0


class Causal(Plain):
    def visible(self, site):
        return site.kv_pos <= site.q_pos


def keys_of(batch, token, head):
    """`(page, slot, kv_index, kv_pos, allowed)` of every key that the levels list for a token."""
    found = []
    for level in batch.levels:
        pages = level.pages[head] if len(level.pages) and isinstance(level.pages[0], tuple) else level.pages
        for row, tokens in enumerate(level.tokens):
            if token not in tokens:
                continue
            j = np.arange(level.kv_len[row])
            slot = level.kv_offset[row] + j
            entry, at = slot // batch.page_size, slot % batch.page_size
            page = np.array(pages[row], int)[entry] if len(j) else entry
            index = level.kv_start[row] + j
            pos = index
            if level.page_pos is not None and len(j):
                pos = np.array(level.page_pos[row])[entry] + at
            if level.key_pos is not None and level.key_pos[row] is not None:
                pos = np.array(level.key_pos[row])
            allowed = np.ones(len(j), bool)
            if level.mask is not None and level.mask[row] is not None:
                allowed = np.array(level.mask[row])[tokens.index(token)]
            found.append((page, at, index, pos, allowed))
    return [np.concatenate(parts) for parts in zip(*found, strict=True)]


def attention(batch, q, k, v, variant, *, sm_scale, k_scale=1.0, v_scale=1.0):
    """`(O [tokens, qo heads, Dv], LSE [tokens, qo heads])`; scales are scalars or one a kv head."""
    q, k, v = (x.double().numpy() for x in (q, k, v))
    tokens, heads = q.shape[:2]
    kv_heads = k.shape[2]
    k_scale, v_scale = np.broadcast_to(k_scale, kv_heads), np.broadcast_to(v_scale, kv_heads)
    out, lse = np.zeros((tokens, heads, v.shape[3])), np.full((tokens, heads), -np.inf)
    for token in range(tokens):
        request = int(batch.token_request[token])
        q_index = token - int(batch.qo_indptr[request])
        qo_len, kv_len = batch.qo_lens[request], batch.kv_lens[request]
        q_pos = batch.q_pos[token] if batch.q_pos is not None else kv_len - qo_len + q_index
        for head in range(heads):
            kv_head = head // (heads // kv_heads)
            page, slot, index, pos, allowed = keys_of(batch, token, kv_head)
            site = SimpleNamespace(
                request=request,
                qo_head=head,
                kv_head=kv_head,
                q_index=q_index,
                q_pos=q_pos,
                qo_len=qo_len,
                kv_len=kv_len,
            )
            row = SimpleNamespace(**vars(site), kv_index=-1, kv_pos=-1)
            pair = SimpleNamespace(**vars(site), kv_index=index, kv_pos=pos)
            keep = allowed & variant.visible(pair)
            page, slot = page[keep], slot[keep]
            pair.kv_index, pair.kv_pos = index[keep], pos[keep]
            keys = variant.key_transform(k[page, slot, kv_head] * k_scale[kv_head], pair)
            values = variant.value_transform(v[page, slot, kv_head] * v_scale[kv_head], pair)
            logits = variant.logits_transform(keys @ variant.query_transform(q[token, head], row) * sm_scale, pair)
            if variant.use_softmax:
                m, d = variant.row_init(row)
                top = np.max(np.append(logits, m))
                if top == -np.inf:
                    o = np.zeros(v.shape[3])
                else:
                    weights = np.exp(logits - top)
                    total = weights.sum() + d * np.exp(m - top)
                    o, lse[token, head] = weights @ values / total, top + np.log(total)
            else:
                o = logits @ values
            out[token, head] = variant.output_transform(o, row)
    return out, lse
