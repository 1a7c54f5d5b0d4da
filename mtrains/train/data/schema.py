"""What the columns of a click log are: label, dense numbers, categories and bags of categories."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from mtrains.train.data.errors import DataError

__all__ = [
    "CRITEO",
    "DENSE_TRANSFORMS",
    "Feature",
    "SampleSpec",
    "Schema",
    "read_schema",
    "schema_of_columns",
]

DENSE_TRANSFORMS = ("log1p", "none")


@dataclass(frozen=True)
class Feature:
    """One categorical column; with a separator each field is a bag of any number of categories."""

    name: str
    separator: str | None = None
    hexadecimal: bool = False  # only hexadecimal digits are well-formed

    def __post_init__(self) -> None:
        if not self.name:
            raise ValueError("a categorical column needs a name")
        if self.separator == "":
            raise ValueError(f"column {self.name!r}: the separator of a bag is at least one character")


@dataclass(frozen=True)
class Schema:
    """Columns by role. dense_transform: "log1p" is log(1 + max(x, 0)), "none" takes numbers as they are."""

    label: str
    dense: tuple[str, ...]
    features: tuple[Feature, ...]
    dense_transform: str = "log1p"

    def __post_init__(self) -> None:
        if not self.label:
            raise ValueError("a schema needs the name of the label column")
        if not self.features:
            raise ValueError("a schema needs at least one categorical column")
        if self.dense_transform not in DENSE_TRANSFORMS:
            choices = ", ".join(DENSE_TRANSFORMS)
            raise ValueError(f"dense_transform must be one of {choices}, got {self.dense_transform!r}")
        seen: set[str] = set()
        for name in self.columns:
            if name in seen:
                raise ValueError(f"column {name!r} has two roles; give each column one")
            seen.add(name)

    @property
    def columns(self) -> tuple[str, ...]:
        """Every column that is read: label, dense, categorical."""
        return (self.label, *self.dense, *(feature.name for feature in self.features))


@dataclass(frozen=True)
class SampleSpec:
    """How records become samples: the schema, and num_embeddings of each feature's table, in its order."""

    schema: Schema
    table_rows: tuple[int, ...]

    def __post_init__(self) -> None:
        assert len(self.table_rows) == len(self.schema.features)


# Label, 13 integers, 26 hexadecimal strings, tab separated, no header (Criteo's display-advertising logs).
CRITEO = Schema(
    label="label",
    dense=tuple(f"I{i}" for i in range(1, 14)),
    features=tuple(Feature(f"C{i}", hexadecimal=True) for i in range(1, 27)),
)


def schema_of_columns(
    label: str, dense: Iterable[str], categorical: Iterable[str], bags: Iterable[str], dense_transform: str
) -> Schema:
    """Return the schema of columns named on a command line; a bag is written COLUMN:SEPARATOR.

    A bag takes the place of the categorical column of its name, or follows the categorical columns.
    Raises: ValueError.
    """
    separators: dict[str, str] = {}
    for bag in bags:
        name, colon, separator = bag.partition(":")
        if not colon or not name or not separator:
            raise ValueError(f"a bag is written COLUMN:SEPARATOR, such as tags:^, got {bag!r}")
        separators[name] = separator
    features = [Feature(name, separators.pop(name, None)) for name in categorical]
    features += [Feature(name, separator) for name, separator in separators.items()]
    return Schema(label, tuple(dense), tuple(features), dense_transform)


def read_schema(path: str) -> Schema:
    """Read a schema file, TOML or JSON by its suffix.

    Keys: label = "click"; dense = ["price"]; categorical = ["user", {name = "tags", separator = "^"}];
    dense_transform = "log1p" or "none".
    Raises: DataError naming the file and the key.
    """
    table = _load(path)
    known = {"label", "dense", "categorical", "dense_transform"}
    for key in table:
        if key not in known:
            raise DataError(f"{path}: unknown key {key!r}; the keys are {', '.join(sorted(known))}")
    label = table.get("label")
    if not isinstance(label, str):
        raise DataError(f"{path}: 'label' must name a column")
    dense = table.get("dense", [])
    if not isinstance(dense, list) or not all(isinstance(name, str) for name in dense):
        raise DataError(f"{path}: 'dense' must be a list of column names")
    categorical = table.get("categorical", [])
    if not isinstance(categorical, list):
        raise DataError(f"{path}: 'categorical' must be a list")
    try:
        features = tuple(_feature(path, entry) for entry in categorical)
        return Schema(label, tuple(dense), features, table.get("dense_transform", "log1p"))
    except DataError:
        raise
    except ValueError as error:
        raise DataError(f"{path}: {error}") from None


def _load(path: str) -> Mapping[str, Any]:
    try:
        text = Path(path).read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise DataError(f"cannot read the schema {path}: {_reason(error)}") from None
    try:
        table = json.loads(text) if path.endswith(".json") else _parse_toml(path, text)
    except ValueError as error:  # json.JSONDecodeError and tomllib.TOMLDecodeError
        raise DataError(f"{path} is not a valid schema file: {error}") from None
    if not isinstance(table, dict):
        raise DataError(f"{path}: a schema is a table of keys, such as label and categorical")
    return table


def _parse_toml(path: str, text: str) -> Mapping[str, Any]:
    if sys.version_info < (3, 11):
        raise DataError(f"{path}: TOML needs Python 3.11; write the schema as JSON (NAME.json)")
    import tomllib

    return tomllib.loads(text)


def _feature(path: str, entry: object) -> Feature:
    if isinstance(entry, str):
        return Feature(entry)
    if isinstance(entry, dict) and set(entry) <= {"name", "separator"}:
        name, separator = entry.get("name"), entry.get("separator")
        if isinstance(name, str) and (separator is None or isinstance(separator, str)):
            return Feature(name, separator)
    raise DataError(f"{path}: a categorical column is a name or {{name, separator}}, got {entry!r}")


def _reason(error: Exception) -> str:
    return error.strerror or str(error) if isinstance(error, OSError) else str(error)
