import pytest

from mtrains.cli import options
from mtrains.train.config import PRESETS
from mtrains.train.data.errors import DataError
from mtrains.train.data.schema import CRITEO, Feature

NO_COLUMNS = {
    "schema_file": None,
    "label": None,
    "dense": None,
    "categorical": None,
    "bags": (),
    "dense_transform": None,
}


def test_a_preset_with_parts_replaced():
    shape = options.choose_shape("terabyte", embedding_dim=None, bottom_mlp=None, top_mlp=None)
    assert shape == PRESETS["terabyte"].shape
    shape = options.choose_shape("terabyte", embedding_dim=8, bottom_mlp="32, 16", top_mlp="")
    assert (shape.embedding_dim, shape.bottom_mlp, shape.top_mlp) == (8, (32, 16), ())
    with pytest.raises(ValueError, match="--top-mlp is a list of widths such as 512,256,64, got '5x'"):
        options.choose_shape("kaggle", embedding_dim=8, bottom_mlp=None, top_mlp="5x")


def test_the_learning_rate_follows_the_optimizer_and_sgd_the_preset():
    assert options.choose_lr("mlperf", "sgd") == 1.0
    assert options.choose_lr("mlperf", "adagrad") == 0.01


def test_tables_have_one_size_or_their_own():
    features = (Feature("user"), Feature("a=b"))
    assert options.choose_table_rows(features, 100, ["a=b=7"]) == (100, 7)
    with pytest.raises(ValueError, match="--table-rows is NAME=N, such as user=1000000, got 'user'"):
        options.choose_table_rows(features, 100, ["user"])
    with pytest.raises(ValueError, match="--table-rows names 'item', which is none of"):
        options.choose_table_rows(features, 100, ["item=7"])


def test_criteo_has_fixed_columns():
    assert options.choose_schema("criteo", **NO_COLUMNS) == CRITEO
    with pytest.raises(ValueError, match="the criteo format has fixed columns"):
        options.choose_schema("criteo", **(NO_COLUMNS | {"label": "click"}))


def test_columns_come_from_options_or_a_file_but_not_both(tmp_path):
    with pytest.raises(ValueError, match="the csv format needs --label and --categorical"):
        options.choose_schema("csv", **(NO_COLUMNS | {"label": "click"}))
    with pytest.raises(ValueError, match="not in both"):
        options.choose_schema("csv", **(NO_COLUMNS | {"label": "click", "schema_file": "x.toml"}))
    with pytest.raises(DataError, match="cannot read the schema"):
        options.choose_schema("csv", **(NO_COLUMNS | {"schema_file": str(tmp_path / "x.toml")}))
    only_a_bag = options.choose_schema("csv", **(NO_COLUMNS | {"label": "click", "bags": ["tags:^"]}))
    assert only_a_bag.features == (Feature("tags", "^"),)
