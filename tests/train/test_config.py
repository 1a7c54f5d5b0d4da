import dataclasses

import pytest

from mtrains.train.config import PRESETS, ModelShape, TrainConfig
from mtrains.train.data.schema import Feature, Schema

SCHEMA = Schema("click", ("price",), (Feature("user"), Feature("item")))
BASE = {
    "data": ("day0",),
    "format": "tsv",
    "schema": SCHEMA,
    "table_rows": (10, 20),
    "shape": PRESETS["kaggle"].shape,
    "store": "folder",
}


def test_presets_are_the_published_models():
    # Widths of the top MLP's input: facebookresearch/dlrm with 26 tables.
    for name, width in (("kaggle", 367), ("terabyte", 415), ("mlperf", 479)):
        shape = PRESETS[name].shape
        assert shape.embedding_dim + 27 * 26 // 2 == width


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"data": ()}, "no data: name files with --data"),
        ({"format": "auto"}, "unknown format 'auto'"),
        ({"optimizer": "adam"}, "unknown optimizer 'adam'; the optimizers are sgd, adagrad"),
        ({"dram": "much"}, "not a size: 'much'"),
        ({"ssd": "-1"}, "not a size: '-1'"),
        ({"dram": 0}, "rows need memory: give --dram, --hbm or --scm"),
        ({"hbm": "lots"}, "not a size: 'lots'"),
        ({"scm": "1KiB"}, "an SCM tier needs a capacity of at least 4096 bytes"),
        ({"scm_emulate": "optane-pmem-100"}, "--scm-emulate needs --scm"),
        ({"scm": "1MiB", "scm_emulate": "tape"}, "emulate must be one of 'optane-pmem-100'"),
        ({"batch_size": 0}, "--batch-size must be >= 1, got 0"),
        ({"epochs": 0}, "--epochs must be >= 1"),
        ({"seed": -1}, "--seed must be >= 0"),
        ({"checkpoint_every": 0}, "--checkpoint-every must be >= 1"),
        ({"lr": 0.0}, "--lr must be a positive number"),
        ({"lr": float("nan")}, "--lr must be a positive number"),
        ({"holdout": 1.0}, "--holdout is a fraction between 0 and 1"),
        ({"holdout": 0.1, "eval_data": ("x",)}, "choose one of --holdout"),
        ({"holdout": 0.1, "holdout_samples": 5}, "choose one of --holdout"),
        ({"store": None, "resume": True}, "--resume needs --store"),
        ({"store": None, "checkpoint_every": 5}, "--checkpoint-every needs --store"),
        ({"data": ("-",), "holdout": 0.1}, "a holdout of standard input would need a second pass"),
        ({"data": ("-",), "epochs": 2}, "standard input can be read once: use --epochs 1"),
        ({"data": ("-", "-")}, "standard input can be read once: give - once"),
        ({"data": ("-",), "workers": 1}, "cannot be shared by workers"),
        ({"data": ("-",), "format": "parquet"}, "Parquet cannot be read from standard input"),
        ({"table_rows": (10,)}, "1 table sizes for 2 categorical columns"),
        ({"table_rows": (10, 0)}, "table 'item' needs at least 1 row"),
        ({"on_bad_line": "warn"}, "--on-bad-line is error or skip"),
    ],
)
def test_contradictions_are_refused_with_one_clear_line(change, message):
    with pytest.raises(ValueError, match=message) as raised:
        TrainConfig(**(BASE | change))
    assert "\n" not in str(raised.value)


def test_shapes_are_checked():
    with pytest.raises(ValueError, match="embedding_dim must be >= 1"):
        ModelShape(embedding_dim=0, bottom_mlp=(), top_mlp=())
    with pytest.raises(ValueError, match="every width of top_mlp must be >= 1"):
        ModelShape(embedding_dim=1, bottom_mlp=(), top_mlp=(4, 0))


def test_schemas_are_checked():
    with pytest.raises(ValueError, match="column 'user' has two roles"):
        Schema("click", ("user",), (Feature("user"),))
    with pytest.raises(ValueError, match="at least one categorical column"):
        Schema("click", ("price",), ())


def test_only_what_decides_the_bits_is_in_the_fingerprint(tmp_path):
    path = tmp_path / "day0"
    path.write_bytes(b"12345")
    config = TrainConfig(**(BASE | {"data": (str(path),)}))
    same = {
        "dram": "1GiB",
        "threads": 3,
        "dense_threads": 2,
        "workers": 2,
        "epochs": 9,
        "max_steps": 7,
        "checkpoint_every": 3,
    }
    same |= {"store": "elsewhere", "resume": True, "io_engine": "pread", "ssd": "9GiB"}
    assert dataclasses.replace(config, **same).fingerprint() == config.fingerprint()

    other = {
        "optimizer": "adagrad",
        "lr": 0.5,
        "batch_size": 64,
        "seed": 1,
        "deterministic": True,
        "on_bad_line": "skip",
    }
    other |= {"table_rows": (10, 21), "holdout": 0.5, "shape": PRESETS["small"].shape, "format": "csv"}
    other |= {
        "schema": dataclasses.replace(SCHEMA, dense_transform="none"),
        "data": ("day1",),
        "eval_data": ("x",),
    }
    for name, value in other.items():
        changed = {"holdout": None, "eval_data": ()} | {name: value}
        assert dataclasses.replace(config, **changed).fingerprint() != config.fingerprint(), name
    path.write_bytes(b"123456")
    assert config.fingerprint()["data"] == ["day0 (6 bytes)"]
