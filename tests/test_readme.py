import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
README = (ROOT / "README.md").read_text()


def example():
    """The lines of the example's diff."""
    (diff,) = re.findall(r"```diff\n(.*?)```", README, re.DOTALL)
    return diff.splitlines()


@pytest.mark.filterwarnings("ignore:Sparse invariant checks are implicitly disabled")
@pytest.mark.parametrize(("side", "other"), [("-", "+"), ("+", "-")])
def test_the_example_runs_before_and_after_the_change(side, other):
    script = "\n".join(line[1:] for line in example() if not line.startswith(other))
    names = {}
    exec(compile(script, f"README.md, side {side}", "exec"), names)
    assert names["loss"].isfinite()
    if side == "+":
        names["store"].close()


def test_replacing_nn_embedding_bag_takes_at_most_five_lines():
    assert sum(line.startswith("+") for line in example()) <= 5
    assert sum(line.startswith("-") for line in example()) <= 5
    assert len(example()) <= 16


def test_files_that_it_names_exist():
    for link in re.findall(r"\]\(((?!http)[^)]+)\)", README):
        assert (ROOT / link).exists(), link


def test_it_is_short():
    assert len(README.splitlines()) <= 150
