"""Mods written in every way that torch allows: what they compute matters less than that it is the same."""

import functools
import math

import torch

INT64 = torch.tensor([5, -3, 0, 9, 2, -7, 11, 4])
INT16 = torch.tensor([300, -300, 7, 0, 1, 2, 3, 4], dtype=torch.int16)
UINT8 = torch.tensor([250, 3, 0, 255, 17, 90, 128, 1], dtype=torch.uint8)
INT8 = torch.tensor([100, -128, 127, 3, 2, 1, 0, -1], dtype=torch.int8)
BF16 = torch.linspace(-3, 3, 8).to(torch.bfloat16)
FP16 = torch.linspace(-2, 70, 8).to(torch.float16)
FP64 = torch.linspace(-1, 1, 8, dtype=torch.float64)
FP32 = torch.linspace(-1.5, 2.5, 32).view(4, 8)
DEEP = torch.arange(3 * 4 * 8, dtype=torch.float32).view(3, 4, 8).sin()
FLAGS = torch.tensor([True, False, True, True, False, False, True, False])
SCALAR = torch.tensor(0.75)
INT_SCALAR = torch.tensor(3)
SCALE = 0.125


class Holder:
    def __init__(self):
        self.bias = torch.linspace(0, 1, 8)
        self.tables = [torch.linspace(1, 2, 4), torch.linspace(2, 3, 4)]

    def __call__(self, score, b, h, q, kv):
        return score + self.bias[kv % 8] * self.tables[1][h]

    def method(self, score, b, h, q, kv):
        return score - self.bias[-1] * self.bias[q % 8]


HOLDER = Holder()


def nested(depth):
    table = torch.linspace(-1, 1, 5) * (depth + 1)
    if depth == 0:
        return lambda score, b, h, q, kv: score + table[kv % 5]
    inner = nested(depth - 1)
    return lambda score, b, h, q, kv: inner(score, b, h, q, kv) * 1.5 + table[q % 5]


def partial_mod(factor, score, b, h, q, kv):
    return score * factor + BF16[h]


def integer_score(score, b, h, q, kv):
    return (q - kv) * 3


def boolean_score(score, b, h, q, kv):
    return q > kv


def half_sums(score, b, h, q, kv):
    wide = BF16[h] * 3 + BF16[kv % 8]
    return score + wide + FP16[q % 8] * 0.1


def buckets(score, b, h, q, kv):
    distance = torch.abs(q - kv)
    large = 4 + (torch.log(distance.float() / 4) / math.log(16) * 4).to(torch.int64)
    bucket = torch.where(distance < 4, distance, torch.clamp(large, max=7))
    return score + FP32[h, bucket]


SCORES = {
    "mixed_integers": lambda s, b, h, q, kv: s + INT64[h] * INT16[kv % 8] + UINT8[q % 8],
    "narrow_wraps": lambda s, b, h, q, kv: s + (INT8[h] + INT8[kv % 8]) + (UINT8[h] + UINT8[q % 8]),
    "half_sums": half_sums,
    "double_capture": lambda s, b, h, q, kv: s * FP64[h] + FP64[kv % 8],
    "chained": lambda s, b, h, q, kv: s + DEEP[b][h][kv % 8],
    "chained_mixed": lambda s, b, h, q, kv: s + DEEP[b, h][kv % 8] + DEEP[b][h, q % 8] + DEEP[1, 2, 3],
    "negative_constants": lambda s, b, h, q, kv: s + DEEP[-1][h][-2] + FP32[h, -1],
    "negative_indices": lambda s, b, h, q, kv: s + FP32[h, (q - kv) // 64 - 1],
    "ellipsis": lambda s, b, h, q, kv: s + DEEP[..., kv % 8][b][h] + DEEP[b, ..., 0][h] + FP32[:, 1][h],
    "transposed": lambda s, b, h, q, kv: s + FP32.T[kv % 8, h] + DEEP.permute(2, 0, 1)[q % 8][b][h],
    "zero_d": lambda s, b, h, q, kv: s * SCALAR + INT_SCALAR * kv,
    "twice_the_same": lambda s, b, h, q, kv: s + SCALAR + FP32[h, 0] * SCALAR - FP32[h, 0],
    "nested_captures": nested(2),
    "object_call": HOLDER,
    "object_method": HOLDER.method,
    "partial_function": functools.partial(partial_mod, 0.5),
    "integer_result": integer_score,
    "boolean_result": boolean_score,
    "python_numbers": lambda s, b, h, q, kv: s * SCALE + 1e-3 * kv - 2**20 + 7 % 3,
    "infinities": lambda s, b, h, q, kv: torch.where(q >= kv, s, -float("inf")),
    "not_a_number": lambda s, b, h, q, kv: torch.where(kv == 3, float("nan"), s),
    "nan_through_clamp": lambda s, b, h, q, kv: torch.clamp(torch.where(kv == 2, float("nan"), s), -1.0, 1.0),
    "zero_over_zero": lambda s, b, h, q, kv: s + (kv - q) / (kv - q),
    "true_division": lambda s, b, h, q, kv: s + q / 7 + kv / (h + 1),
    "float_floor": lambda s, b, h, q, kv: s // 0.7 + (q * 0.3) % -0.25,
    "rounding": lambda s, b, h, q, kv: torch.round(s) + torch.floor(s) + torch.ceil(s * 2) + torch.trunc(s * 3),
    "saturation": lambda s, b, h, q, kv: torch.tanh(s / -1.75) * -1.75,
    "no_saturation": lambda s, b, h, q, kv: 1.5 * torch.tanh(s / 1.75),
    "functions": lambda s, b, h, q, kv: torch.tanh(s) + torch.exp(-s.abs()) + torch.sigmoid(s) + torch.log1p(s * s),
    "more_functions": lambda s, b, h, q, kv: s.sin() + s.cos() + torch.exp2(s / 4) + s.erf() + s.abs().sqrt(),
    "activations": lambda s, b, h, q, kv: torch.nn.functional.gelu(s) + torch.relu(s) + torch.nn.functional.silu(s),
    "powers": lambda s, b, h, q, kv: s**2 + torch.pow(s.abs() + 1, -0.5) + 2.0 ** (-8.0 * (h + 1) / 4) + (q % 3) ** 3,
    "alpha": lambda s, b, h, q, kv: torch.add(s, kv, alpha=2) - torch.sub(q, kv, alpha=3),
    "reversed_operands": lambda s, b, h, q, kv: 3 - s + 10 // (kv + 1) + 7 % (q + 1) + 1.5 / (kv + 1),
    "new_tensors": lambda s, b, h, q, kv: s + s.new_zeros(()) + torch.ones_like(s) + torch.tensor(2.5),
    "filled": lambda s, b, h, q, kv: s + torch.full((), 3) + torch.full_like(s, -0.5) + s.new_ones(()),
    "log_buckets": buckets,
    "default_argument": lambda s, b, h, q, kv, factor=3: s * factor,
    "site_arguments": lambda s, b, h, q, kv, kv_len, *, qo_len, kv_head: s + kv_len / (qo_len + q) + kv_head,
    "minimum_maximum": lambda s, b, h, q, kv: torch.maximum(torch.minimum(s, SCALAR), q - kv + 0.5),
    "signs": lambda s, b, h, q, kv: s.sign() + torch.sign(q - kv) + torch.copysign(s, kv - q + 0.5) + (-s).neg(),
}  # fmt: skip

MASKS = {
    "floor_of_negatives": lambda b, h, q, kv: ((q - kv) // 5 == -2) | ((q - kv) % 5 == 4),
    "floor_by_negative": lambda b, h, q, kv: (q - kv) // -3 > (kv - q) % -4,
    "shifts": lambda b, h, q, kv: ((q >> 2) == (kv >> 2)) | ((kv << 1) & 6 == 2) | ((q - kv) >> 1 < -3),
    "bits": lambda b, h, q, kv: ((q ^ kv) & 3 == 1) | (~kv % 5 == 0) | ((q | 1) == kv),
    "inverted": lambda b, h, q, kv: ~((q < kv) | ~(kv % 2 == 0)),
    "boolean_table": lambda b, h, q, kv: FLAGS[kv % 8] & ~FLAGS[(q + h) % 8],
    "boolean_arithmetic": lambda b, h, q, kv: ((q > kv) + (q < kv)) * (kv != 3),
    "integer_edges": lambda b, h, q, kv: (kv + 2147483647 < q) | (q - 2147483647 < -kv),
    "wrapping_window": lambda b, h, q, kv: kv <= q + 2147483640,
    "wrapping_product": lambda b, h, q, kv: (kv * 1000003) * 4099 > q * 77777777,
    "int64_promotes": lambda b, h, q, kv: (kv + INT64[h]) * 4294967296 > (q + INT64[0]) * 8589934592,
    "float_comparison": lambda b, h, q, kv: kv < q * 0.5 + 1,
    "float_equality": lambda b, h, q, kv: kv * 0.1 * 3 == kv * 0.3,
    "mixed_comparison": lambda b, h, q, kv: (UINT8[h] > INT8[kv % 8]) ^ (FP16[h] < kv),
    "truncating_division": lambda b, h, q, kv: torch.div(q - kv, 4, rounding_mode="trunc") == -1,
    "floor_mode": lambda b, h, q, kv: torch.div(q - kv, 4, rounding_mode="floor") == -1,
    "converted": lambda b, h, q, kv: (q * 0.37).to(torch.int32) == (kv * 0.37).int(),
    "logical": lambda b, h, q, kv: torch.logical_and(torch.logical_or(q > kv, kv == 0), torch.logical_not(kv == 5)),
    "chosen": lambda b, h, q, kv: torch.where(h % 2 == 0, q >= kv, kv - q < 3),
    "constant": lambda b, h, q, kv: q.new_ones((), dtype=torch.bool),
    "python_true": lambda b, h, q, kv: True,
    "is_nan": lambda b, h, q, kv: torch.isnan((q - kv) / (q - kv)) | torch.isinf(1.0 / (kv - 2)),
}  # fmt: skip
