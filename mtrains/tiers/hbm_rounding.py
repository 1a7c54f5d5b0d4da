"""Stochastic rounding of float32 to 16 bits, keyed by (seed, table), update count, row and column.

The same integers as native/src/philox_lanes.h and kernels_vector.h, in int64 tensors that hold unsigned 32-bit
words. Legend: U unique rows, D columns.
"""

from __future__ import annotations

from typing import Final

import torch

__all__ = ["round_weights", "rounding_words"]

# Philox4x32-10. Source: Salmon et al., "Parallel random numbers: as easy as 1, 2, 3", SC 2011.
_MULTIPLIERS: Final = (0xD2511F53, 0xCD9E8D57)
_WEYL: Final = (0x9E3779B9, 0xBB67AE85)
_ROUNDS: Final = 10

_LANES: Final = 16
_BLOCK_BITS: Final = 25  # of a counter: the block below the update count, see native/src/counters.h
_WORD: Final = 0xFFFFFFFF


def rounding_words(key: int, update_count: int, rows: torch.Tensor, dim: int) -> torch.Tensor:
    """Return uniform 32-bit words, int64[U, D].

    Column d takes word (d / 16) % 4 of counter block (d / 64) * 16 + d % 16.

    Args:
        key: in [0, 2^64). update_count: in [0, 2^38). rows: int64[U], in [0, 2^63).
    """
    groups, lanes = -(-dim // (4 * _LANES)), min(dim, _LANES)
    block = torch.arange(groups, device=rows.device)[:, None] * _LANES
    block = block + torch.arange(lanes, device=rows.device)
    words = _philox(
        key,
        (rows & _WORD)[:, None, None],
        (rows >> 32)[:, None, None],
        block | (update_count << _BLOCK_BITS & _WORD),
        1 << 31 | update_count >> (32 - _BLOCK_BITS),
    )
    return torch.stack(words, dim=2).flatten(1)[:, :dim]


def round_weights(values: torch.Tensor, words: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
    """Return `values` (float32) as dtype, float16 or bfloat16: one of the two neighbours.

    The farther one with a probability equal to the distance from the nearer. Representable values stay, so do
    infinities and NaN; finite values beyond the largest become the largest.
    """
    bits = values.contiguous().view(torch.int32).to(torch.int64) & _WORD
    rounded = _round_float16(bits, words) if dtype is torch.float16 else _round_bfloat16(bits, words)
    return rounded.to(torch.int16).view(dtype)


def _philox(
    key: int, c0: torch.Tensor, c1: torch.Tensor, c2: torch.Tensor, c3: torch.Tensor | int
) -> tuple[torch.Tensor, ...]:
    k0, k1 = key & _WORD, key >> 32
    for _ in range(_ROUNDS):
        # The product has 64 bits: int64 wraps around, and holds the same bits.
        product0, product1 = c0 * _MULTIPLIERS[0], c2 * _MULTIPLIERS[1]
        c0, c2 = (product1 >> 32 & _WORD) ^ c1 ^ k0, (product0 >> 32 & _WORD) ^ c3 ^ k1
        c1, c3 = product1 & _WORD, product0 & _WORD
        k0, k1 = k0 + _WEYL[0] & _WORD, k1 + _WEYL[1] & _WORD
    assert isinstance(c3, torch.Tensor)
    return c0, c1, c2, c3


def _round_float16(bits: torch.Tensor, words: torch.Tensor) -> torch.Tensor:
    magnitude = bits & 0x7FFFFFFF
    exponent = magnitude >> 23
    normal = ((magnitude + (words & 0x1FFF)) >> 13) - (112 << 10)
    # Below 2^-14 the value is significand / 2^want units of 2^-24; at most 31 random bits are compared.
    significand = torch.where(exponent > 0, (magnitude & 0x7FFFFF) | 0x800000, magnitude)
    want = (126 - exponent.clamp(min=1)).clamp(min=0)
    shift = want.clamp(max=31)
    cut = significand >> (want - shift).clamp(max=31)
    subnormal = (cut + (words & ((1 << shift) - 1))) >> shift
    finite = torch.where(magnitude < 0x38800000, subnormal, normal).clamp(max=0x7BFF)
    return _with_specials(bits, finite, torch.where(magnitude > 0x7F800000, 0x7E00, 0x7C00))


def _round_bfloat16(bits: torch.Tensor, words: torch.Tensor) -> torch.Tensor:
    magnitude = bits & 0x7FFFFFFF
    finite = ((magnitude + (words & 0xFFFF)) >> 16).clamp(max=0x7F7F)
    return _with_specials(bits, finite, (magnitude >> 16) | (magnitude > 0x7F800000).to(torch.int64) << 6)


def _with_specials(bits: torch.Tensor, finite: torch.Tensor, special: torch.Tensor) -> torch.Tensor:
    """Return 16 bits with the sign of `bits`: `special` for infinities and NaN, else `finite`."""
    return (bits >> 16 & 0x8000) | torch.where((bits & 0x7FFFFFFF) >= 0x7F800000, special, finite)
