"""A stable hash from the text of a category to a row of its table.

The hash is fixed for ever: rows of a store belong to categories only through it. For the bytes b of a
category, with all arithmetic modulo 2**64 and mix(x) the finaliser of SplitMix64 (Steele, Lea, Flood: Fast
splittable pseudorandom number generators, OOPSLA 2014):

    h = mix(len(b) + G)                                    G = 0x9E3779B97F4A7C15
    for each 8 bytes of b (little-endian, the last padded with zero bytes):  h = mix(h ^ word) + G
    hash = mix(h)

Row 0 of every table is the missing category (an empty field); category b has row 1 + hash % (rows - 1).
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

__all__ = ["category_rows", "hash_bytes", "hash_many"]

_GOLDEN = 0x9E3779B97F4A7C15
_MULTIPLIERS = (0xBF58476D1CE4E5B9, 0x94D049BB133111EB)
_MASK = 0xFFFFFFFFFFFFFFFF
_VECTOR_BYTES = 64  # longer ones are hashed one by one: a matrix as wide as the longest has no bound


def _mix(x: int) -> int:
    x = ((x ^ (x >> 30)) * _MULTIPLIERS[0]) & _MASK
    x = ((x ^ (x >> 27)) * _MULTIPLIERS[1]) & _MASK
    return x ^ (x >> 31)


def hash_bytes(text: bytes) -> int:
    """Return the 64-bit hash of one category."""
    h = _mix((len(text) + _GOLDEN) & _MASK)
    for begin in range(0, len(text), 8):
        h = (_mix(h ^ int.from_bytes(text[begin : begin + 8], "little")) + _GOLDEN) & _MASK
    return _mix(h)


def _mix_many(x: NDArray[np.uint64]) -> NDArray[np.uint64]:
    x = (x ^ (x >> np.uint64(30))) * np.uint64(_MULTIPLIERS[0])
    x = (x ^ (x >> np.uint64(27))) * np.uint64(_MULTIPLIERS[1])
    return x ^ (x >> np.uint64(31))


def hash_many(texts: Sequence[bytes]) -> NDArray[np.uint64]:
    """Return `hash_bytes` of every text; uint64[n]."""
    lengths = np.fromiter(map(len, texts), np.int64, len(texts))
    width = int(min(lengths.max(initial=0), _VECTOR_BYTES))
    num_words = (width + 7) // 8
    hashes = _mix_many(lengths.astype(np.uint64) + np.uint64(_GOLDEN))
    if num_words:
        words = np.array(texts, dtype=f"S{8 * num_words}").view("<u8").reshape(len(texts), num_words)
        for word in range(num_words):
            longer = lengths > 8 * word
            mixed = _mix_many(hashes ^ words[:, word]) + np.uint64(_GOLDEN)
            hashes = np.where(longer, mixed, hashes)
    hashes = _mix_many(hashes)
    for position in np.flatnonzero(lengths > _VECTOR_BYTES).tolist():
        hashes[position] = hash_bytes(texts[position])
    return hashes


def category_rows(texts: Sequence[bytes], num_embeddings: int) -> NDArray[np.int64]:
    """Return the row of each category in a table of `num_embeddings` rows (>= 1); int64[n]."""
    if num_embeddings == 1:
        return np.zeros(len(texts), np.int64)
    rows = (hash_many(texts) % np.uint64(num_embeddings - 1)).astype(np.int64) + 1
    rows[np.fromiter(map(len, texts), np.int64, len(texts)) == 0] = 0
    return rows
