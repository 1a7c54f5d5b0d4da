"""Records of Parquet files, through the optional pyarrow, in batches, never a whole file.

Values become the same samples as their text in a CSV file: a category is hashed by its text, null is missing.
"""

# ruff: noqa: ANN401 (pyarrow is optional, so its types are not named)
from __future__ import annotations

import importlib
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from mtrains.train.data.block import BadLine, FeatureColumn, ParsedBlock, SampleBlock
from mtrains.train.data.convert import bag_column, split_bag, transform_dense
from mtrains.train.data.delimited import BLOCK_RECORDS, find_columns
from mtrains.train.data.errors import DataError
from mtrains.train.data.hashing import category_rows
from mtrains.train.data.schema import Feature, SampleSpec, Schema

__all__ = ["ParquetBlock", "ParquetReader"]


@dataclass(frozen=True)
class ParquetBlock:
    """Consecutive rows of one file, as Arrow arrays. first_line: number of the first row, counted from 1."""

    path: str
    first_line: int
    batch: Any  # pyarrow.RecordBatch with the schema's columns
    spec: SampleSpec

    def __len__(self) -> int:
        return int(self.batch.num_rows)

    def slice(self, begin: int, end: int) -> ParquetBlock:
        """Return the rows [begin, end)."""
        batch = self.batch.slice(begin, end - begin)
        return replace(self, first_line=self.first_line + begin, batch=batch)

    def parse(self) -> ParsedBlock:
        """Convert the rows to samples."""
        reasons: dict[int, str] = {}
        schema = self.spec.schema
        labels = _floats(self, schema.label)
        _note(reasons, ~np.isin(labels, (0.0, 1.0)), f"label {schema.label!r} is neither 0 nor 1")
        dense = np.stack([_floats(self, name) for name in schema.dense], axis=1) if schema.dense else None
        if dense is None:
            dense = np.empty((len(self), 0), np.float64)
        for column, name in enumerate(schema.dense):
            _note(reasons, ~_transformable(dense[:, column], schema), f"field {name!r} is not finite")
        columns = tuple(
            _feature_column(self, feature, num_embeddings)
            for feature, num_embeddings in zip(schema.features, self.spec.table_rows, strict=True)
        )
        good = np.array([i not in reasons for i in range(len(self))], bool)
        samples = SampleBlock(
            labels[good].astype(np.float32),
            transform_dense(dense[good], schema),
            tuple(_kept(column, good) for column in columns),
            np.flatnonzero(good).astype(np.int64),
        )
        bad = tuple(BadLine(self.path, self.first_line + i, reasons[i]) for i in sorted(reasons))
        return ParsedBlock(samples, bad, len(self))


class ParquetReader:
    """Reads Parquet files with the columns of a schema; lists are bags."""

    def __init__(self, spec: SampleSpec) -> None:
        self._spec = spec

    def read_blocks(self, path: str) -> Iterator[ParquetBlock]:
        """Yield the rows of a file in blocks of at most BLOCK_RECORDS."""
        file = _open(path)
        try:
            find_columns(path, file.schema_arrow.names, self._spec.schema)
            line = 1
            for batch in file.iter_batches(BLOCK_RECORDS, columns=list(self._spec.schema.columns)):
                yield ParquetBlock(path, line, batch, self._spec)
                line += batch.num_rows
        except (OSError, _arrow().ArrowException) as error:
            raise DataError(f"{path}: reading Parquet failed: {_one_line(error)}") from None
        finally:
            file.close()

    def count_records(self, path: str) -> int:
        """Return the number of rows, from the file's footer."""
        file = _open(path)
        try:
            return int(file.metadata.num_rows)
        finally:
            file.close()


def _arrow() -> Any:
    try:
        return importlib.import_module("pyarrow")
    except ImportError:
        raise DataError("reading Parquet needs pyarrow: pip install 'mtrains[parquet]'") from None


def _open(path: str) -> Any:
    arrow = _arrow()
    try:
        return importlib.import_module("pyarrow.parquet").ParquetFile(path)
    except FileNotFoundError:
        raise DataError(f"cannot read {path}: No such file or directory") from None
    except (OSError, arrow.ArrowException) as error:
        raise DataError(f"cannot read {path} as Parquet: {_one_line(error)}") from None


def _one_line(error: Exception) -> str:
    return " ".join(str(error).split())


def _note(reasons: dict[int, str], wrong: NDArray[np.bool_], reason: str) -> None:
    for i in np.flatnonzero(wrong):
        reasons.setdefault(int(i), reason)


def _transformable(values: NDArray[np.float64], schema: Schema) -> NDArray[np.bool_]:
    limit = np.inf if schema.dense_transform == "log1p" else float(np.finfo(np.float32).max)
    return np.asarray(np.isnan(values) | (np.isfinite(values) & (np.abs(values) <= limit)))


def _floats(block: ParquetBlock, name: str) -> NDArray[np.float64]:
    """A column as float64[B], NaN where it is null."""
    arrow = _arrow()
    column = block.batch.column(block.batch.schema.get_field_index(name))
    try:
        if arrow.types.is_dictionary(column.type):
            column = column.dictionary_decode()
        if arrow.types.is_boolean(column.type):
            column = column.cast(arrow.int8())
        values = column.cast(arrow.float64(), safe=False).to_numpy(zero_copy_only=False)
    except arrow.ArrowException:
        raise DataError(f"{block.path}: column {name!r} of type {column.type} holds no numbers") from None
    return np.asarray(values, np.float64)


def _feature_column(block: ParquetBlock, feature: Feature, num_embeddings: int) -> FeatureColumn:
    column = block.batch.column(block.batch.schema.get_field_index(feature.name))
    texts = _texts(block, feature, column)
    if _is_list(column.type):
        return bag_column([[text for text in bag or () if text] for bag in texts], num_embeddings)
    flat = [text or b"" for text in texts]
    if feature.separator is not None:
        separator = feature.separator.encode()
        return bag_column([split_bag(text, separator) for text in flat], num_embeddings)
    return FeatureColumn(category_rows(flat, num_embeddings))


def _is_list(kind: Any) -> bool:
    types = _arrow().types
    return bool(types.is_list(kind) or types.is_large_list(kind))


def _texts(block: ParquetBlock, feature: Feature, column: Any) -> list[Any]:
    """Values as bytes or None; of a list column, lists of them."""
    arrow = _arrow()
    text, binary = arrow.string(), arrow.binary()
    if _is_list(column.type):
        text, binary = arrow.list_(text), arrow.list_(binary)
    try:
        if arrow.types.is_dictionary(column.type):
            column = column.dictionary_decode()
        if not arrow.types.is_binary(column.type):
            column = column.cast(text).cast(binary)
    except arrow.ArrowException:
        raise DataError(
            f"{block.path}: column {feature.name!r} of type {column.type} does not convert to text"
        ) from None
    texts: list[Any] = column.to_pylist()
    return texts


def _kept(column: FeatureColumn, good: NDArray[np.bool_]) -> FeatureColumn:
    if good.all():
        return column
    if column.lengths is None:
        return FeatureColumn(column.indices[good])
    return FeatureColumn(column.indices[np.repeat(good, column.lengths)], column.lengths[good])
