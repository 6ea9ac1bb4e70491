"""T5's buckets of distances: one each for the near ones, then logarithmically wider ones."""

import numpy as np
from attnloom.errors import ParamError


def bucket_of(distance, *, num_buckets: int, max_distance: int, bidirectional: bool) -> np.ndarray:
    """The bucket of each distance `kv_pos - q_pos`, int32; as transformers computes them, in float32."""
    distance = np.asarray(distance, np.int64)
    first = np.zeros_like(distance)
    if bidirectional:
        num_buckets //= 2
        first = np.where(distance > 0, num_buckets, 0)
        distance = np.abs(distance)
    else:
        distance = -np.minimum(distance, 0)
    exact = num_buckets // 2
    ratio = np.maximum(distance, 1).astype(np.float32) / np.float32(exact)
    wide = np.log(ratio) / np.float32(np.log(max_distance / exact)) * np.float32(num_buckets - exact)
    large = np.minimum(exact + wide.astype(np.int64), num_buckets - 1)
    return (first + np.where(distance < exact, distance, large)).astype(np.int32)


def table(spec, params) -> np.ndarray:
    """The buckets of the distances from `-max_distance` to `max_distance`, beyond which nothing changes."""
    names = ("num_buckets", "max_distance", "bidirectional")
    most = params["max_distance"]
    return bucket_of(np.arange(-most, most + 1), **{name: params[name] for name in names})


def check(spec, params) -> None:
    """Raise `ParamError` for buckets that cannot be, or a `bias` of other buckets."""
    num_buckets, max_distance = params["num_buckets"], params["max_distance"]
    least = 4 if params["bidirectional"] else 2
    if num_buckets < least or max_distance <= num_buckets // least:
        raise ParamError(
            f"t5_bias: {num_buckets} bucket(s) for distances up to {max_distance} cannot be: num_buckets is at least "
            f"{least}, max_distance more than num_buckets // {least}"
        )
    if params["bias"].shape[0] != num_buckets:
        raise ParamError(f"t5_bias.bias has {params['bias'].shape[0]} row(s), t5_bias.num_buckets is {num_buckets}")


def example(spec, qo_lens, kv_lens) -> dict:
    """A bias, for tests."""
    return {"bias": np.random.default_rng(5).standard_normal((32, spec.num_qo_heads)).astype(np.float32)}
