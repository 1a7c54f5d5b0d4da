"""From the options of `mtrains train` to a TrainConfig."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from mtrains.train.config import DEFAULT_LR, PRESETS, ModelShape
from mtrains.train.data.schema import CRITEO, Feature, Schema, read_schema, schema_of_columns

__all__ = ["choose_lr", "choose_schema", "choose_shape", "choose_table_rows", "parse_names", "parse_widths"]


def parse_names(text: str | None) -> tuple[str, ...]:
    """Return the names in "a,b,c"."""
    return tuple(name.strip() for name in text.split(",") if name.strip()) if text else ()


def parse_widths(option: str, text: str) -> tuple[int, ...]:
    """Return the layer widths in "512,256,64"; "" is none. Raises: ValueError."""
    try:
        return tuple(int(width) for width in parse_names(text))
    except ValueError:
        raise ValueError(f"{option} is a list of widths such as 512,256,64, got {text!r}") from None


def choose_schema(
    format_name: str,
    *,
    schema_file: str | None,
    label: str | None,
    dense: str | None,
    categorical: str | None,
    bags: Sequence[str],
    dense_transform: str | None,
) -> Schema:
    """Return the schema of the data: fixed for Criteo, else from a file or from column options.

    Raises: ValueError if options contradict each other or say too little; DataError for a bad schema file.
    """
    by_columns = [label, dense, categorical, *bags]
    named = any(option is not None for option in by_columns)
    if format_name == "criteo":
        if schema_file is not None or named:
            raise ValueError(
                "the criteo format has fixed columns; with a header line use --format tsv or csv"
            )
        return Schema(CRITEO.label, CRITEO.dense, CRITEO.features, dense_transform or CRITEO.dense_transform)
    if schema_file is not None:
        if named or dense_transform is not None:
            raise ValueError("name the columns in --schema or in options, not in both")
        return read_schema(schema_file)
    if label is None or (categorical is None and not bags):
        raise ValueError(
            f"the {format_name} format needs --label and --categorical (or --bag), or --schema FILE"
        )
    return schema_of_columns(
        label, parse_names(dense), parse_names(categorical), bags, dense_transform or "log1p"
    )


def choose_shape(
    preset: str, *, embedding_dim: int | None, bottom_mlp: str | None, top_mlp: str | None
) -> ModelShape:
    """Return the preset's model with the given parts replaced. Raises: ValueError."""
    shape = PRESETS[_known_preset(preset)].shape
    return ModelShape(
        embedding_dim=shape.embedding_dim if embedding_dim is None else embedding_dim,
        bottom_mlp=shape.bottom_mlp if bottom_mlp is None else parse_widths("--bottom-mlp", bottom_mlp),
        top_mlp=shape.top_mlp if top_mlp is None else parse_widths("--top-mlp", top_mlp),
    )


def choose_lr(preset: str, optimizer: str) -> float:
    """Return the learning rate where none is given: the optimizer's default, for sgd the preset's."""
    return DEFAULT_LR.get(optimizer, PRESETS[_known_preset(preset)].lr)


def choose_table_rows(features: Iterable[Feature], rows: int, overrides: Sequence[str]) -> tuple[int, ...]:
    """Return num_embeddings of each table; overrides are NAME=N. Raises: ValueError."""
    names = [feature.name for feature in features]
    by_name: dict[str, int] = dict.fromkeys(names, rows)
    for override in overrides:
        name, _, number = override.rpartition("=")
        if not name or not number.isdecimal():
            raise ValueError(f"--table-rows is NAME=N, such as user=1000000, got {override!r}")
        if name not in by_name:
            raise ValueError(f"--table-rows names {name!r}, which is none of the categorical columns {names}")
        by_name[name] = int(number)
    return tuple(by_name[name] for name in names)


def _known_preset(preset: str) -> str:
    presets: Mapping[str, object] = PRESETS
    if preset not in presets:
        raise ValueError(f"unknown preset {preset!r}; the presets are {', '.join(presets)}")
    return preset
