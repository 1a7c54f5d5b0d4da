import pytest

from mtrains.train.data.errors import DataError
from mtrains.train.data.schema import Feature, Schema, read_schema, schema_of_columns

EXPECTED = Schema("click", ("price", "age"), (Feature("user"), Feature("tags", "^")), "none")


def test_toml_and_json_files(tmp_path):
    toml = tmp_path / "schema.toml"
    toml.write_text(
        'label = "click"\ndense = ["price", "age"]\ndense_transform = "none"\n'
        'categorical = ["user", {name = "tags", separator = "^"}]\n'
    )
    json = tmp_path / "schema.json"
    json.write_text(
        '{"label": "click", "dense": ["price", "age"], "dense_transform": "none", '
        '"categorical": ["user", {"name": "tags", "separator": "^"}]}'
    )
    assert read_schema(str(toml)) == EXPECTED
    assert read_schema(str(json)) == EXPECTED


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("label = ", "is not a valid schema file"),
        ("[]", "is not a valid schema file"),
        ('categorical = ["user"]', "'label' must name a column"),
        ('label = "click"', "at least one categorical column"),
        ('label = "click"\ncategoric = ["user"]', "unknown key 'categoric'"),
        ('label = "click"\ncategorical = [3]', "a categorical column is a name or"),
        ('label = "click"\ncategorical = [{name = "a", sep = "b"}]', "a categorical column is a name or"),
        ('label = "click"\ncategorical = "user"', "'categorical' must be a list"),
        ('label = "click"\ncategorical = ["u"]\ndense = "price"', "'dense' must be a list of column names"),
        ('label = "click"\ncategorical = ["u"]\ndense_transform = "sqrt"', "dense_transform must be one of"),
        ('label = "click"\ncategorical = ["click"]', "column 'click' has two roles"),
    ],
)
def test_a_bad_file_is_one_clear_error(tmp_path, text, message):
    path = tmp_path / "schema.toml"
    path.write_text(text)
    with pytest.raises(DataError, match=message) as raised:
        read_schema(str(path))
    assert "schema.toml" in str(raised.value)


def test_an_absent_file_is_named(tmp_path):
    with pytest.raises(DataError, match=r"cannot read the schema .*absent\.toml: No such file"):
        read_schema(str(tmp_path / "absent.toml"))


def test_columns_named_on_the_command_line():
    assert schema_of_columns("click", ("price", "age"), ("user",), ("tags:^",), "none") == EXPECTED
    in_place = schema_of_columns("click", (), ("tags", "user"), ("tags:,",), "none")
    assert in_place.features == (Feature("tags", ","), Feature("user"))
    for bag in ("tags", "tags:", ":^"):
        with pytest.raises(ValueError, match="a bag is written COLUMN:SEPARATOR"):
            schema_of_columns("click", (), (), (bag,), "none")
