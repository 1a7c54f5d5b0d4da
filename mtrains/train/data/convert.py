"""Columns of text to arrays of samples, and the malformed records among them.

The fast path converts whole columns. Where a value does not convert, the records are checked one by one, the
malformed ones are named and taken out, and the fast path runs again.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from mtrains.train.data.block import BadLine, FeatureColumn, ParsedBlock, SampleBlock
from mtrains.train.data.hashing import category_rows
from mtrains.train.data.schema import SampleSpec, Schema

__all__ = ["bag_column", "convert_records", "split_bag", "transform_dense"]

_LABELS = {b"0": 0.0, b"1": 1.0, b"0.0": 0.0, b"1.0": 1.0}
_HEXADECIMAL = b"0123456789abcdefABCDEF"
_SHOWN_BYTES = 40


@dataclass(frozen=True)
class _Malformed:
    position: int
    reason: str


def convert_records(
    path: str,
    lines: Sequence[int],
    records: Sequence[Sequence[bytes]],
    places: Sequence[int],
    width: int,
    spec: SampleSpec,
) -> ParsedBlock:
    """Convert records of `width` fields; places[i] is the field of the schema's i-th column."""
    positions = [i for i, record in enumerate(records) if len(record) == width]
    bad = _bad_widths(records, width) if len(positions) < len(records) else []
    kept = records if len(positions) == len(records) else [records[i] for i in positions]
    try:
        samples = _convert(kept, places, spec, np.asarray(positions, np.int64))
    except ValueError:
        reasons = [_malformed_field(record, places, spec.schema) for record in kept]
        bad += [_Malformed(i, reason) for i, reason in zip(positions, reasons, strict=True) if reason]
        bad.sort(key=lambda malformed: malformed.position)
        kept = [record for record, reason in zip(kept, reasons, strict=True) if not reason]
        positions = [i for i, reason in zip(positions, reasons, strict=True) if not reason]
        samples = _convert(kept, places, spec, np.asarray(positions, np.int64))
    named = tuple(BadLine(path, lines[malformed.position], malformed.reason) for malformed in bad)
    return ParsedBlock(samples, named, len(records))


def transform_dense(values: NDArray[np.float64], schema: Schema) -> NDArray[np.float32]:
    """Apply the schema's transform; NaN (a missing number) becomes 0.

    Raises: ValueError if not all are finite.
    """
    values = np.nan_to_num(values, nan=0.0, posinf=np.inf, neginf=-np.inf)
    if not np.isfinite(values).all():
        raise ValueError("infinite number")
    if schema.dense_transform == "log1p":
        return np.log1p(np.maximum(values, 0.0)).astype(np.float32)
    if (np.abs(values) > np.finfo(np.float32).max).any():
        raise ValueError("number out of the range of float32")
    return values.astype(np.float32)


def _convert(
    records: Sequence[Sequence[bytes]],
    places: Sequence[int],
    spec: SampleSpec,
    positions: NDArray[np.int64],
) -> SampleBlock:
    """Convert well-formed records; ValueError if one of them is not."""
    schema = spec.schema
    columns = list(zip(*records, strict=True)) if records else [()] * (max(places) + 1)
    picked = [columns[place] for place in places]
    try:
        labels = np.fromiter(map(_LABELS.__getitem__, picked[0]), np.float32, len(records))
    except KeyError:
        raise ValueError("unknown label") from None
    num_dense = len(schema.dense)
    dense = np.empty((len(records), num_dense), np.float64)
    for column, texts in enumerate(picked[1 : 1 + num_dense]):
        dense[:, column] = _numbers(texts)
    features = []
    for feature, num_embeddings, texts in zip(
        schema.features, spec.table_rows, picked[1 + num_dense :], strict=True
    ):
        if feature.hexadecimal and b"".join(texts).translate(None, _HEXADECIMAL):
            raise ValueError("not hexadecimal")
        if feature.separator is None:
            features.append(FeatureColumn(category_rows(texts, num_embeddings)))
        else:
            separator = feature.separator.encode()
            features.append(bag_column([split_bag(text, separator) for text in texts], num_embeddings))
    return SampleBlock(labels, transform_dense(dense, schema), tuple(features), positions)


def _numbers(texts: Sequence[bytes]) -> NDArray[np.float64]:
    if b"_" in b"".join(texts):  # float() takes 1_000
        raise ValueError("not a number")
    return np.fromiter((float(text) if text else math.nan for text in texts), np.float64, len(texts))


def split_bag(text: bytes, separator: bytes) -> list[bytes]:
    """Return the categories of a bag; an empty field is an empty bag, empty categories in a bag are none."""
    return [category for category in text.split(separator) if category]


def bag_column(bags: Sequence[Sequence[bytes]], num_embeddings: int) -> FeatureColumn:
    """Return the column of these bags of categories."""
    lengths = np.fromiter(map(len, bags), np.int64, len(bags))
    return FeatureColumn(
        category_rows([category for bag in bags for category in bag], num_embeddings), lengths
    )


def _bad_widths(records: Sequence[Sequence[bytes]], width: int) -> list[_Malformed]:
    bad = []
    for i, record in enumerate(records):
        if len(record) != width:
            empty = len(record) == 0 or (len(record) == 1 and not record[0])
            reason = "empty line" if empty else f"{len(record)} fields, {width} expected"
            bad.append(_Malformed(i, reason))
    return bad


def _malformed_field(record: Sequence[bytes], places: Sequence[int], schema: Schema) -> str | None:
    """Name the first malformed field of a record of the right width, or None."""
    if record[places[0]] not in _LABELS:
        return f"label {schema.label!r} is {_shown(record[places[0]])}, neither 0 nor 1"
    num_dense = len(schema.dense)
    for name, place in zip(schema.dense, places[1:], strict=False):
        try:
            transform_dense(_numbers([record[place]]), schema)
        except ValueError:
            return f"field {name!r} is {_shown(record[place])}, not a finite number"
    for feature, place in zip(schema.features, places[1 + num_dense :], strict=True):
        if feature.hexadecimal and record[place].translate(None, _HEXADECIMAL):
            return f"field {feature.name!r} is {_shown(record[place])}, not hexadecimal"
    return None


def _shown(field: bytes) -> str:
    text = field[:_SHOWN_BYTES].decode("utf-8", "replace")
    return repr(text) + ("..." if len(field) > _SHOWN_BYTES else "")
