import json

import numpy as np
import pytest

from mtrains.cli import main
from mtrains.cli.app import EXIT_FAILED, EXIT_USAGE
from mtrains.cli.render_simulations import simulations_report
from mtrains.profiler.simulate import Capacity, SimulationSpec, simulate
from mtrains.profiler.trace import read_trace


@pytest.fixture
def path(tmp_path):
    """Two tables; 600 samples of two lookups, skewed."""
    access = np.arange(1200)
    row = 200 // (access**2 * 7 % 97 + 1) + access // 100
    path = tmp_path / "trace.npz"
    np.savez(path, row=row, table=np.tile(["item", "user"], 600), sample=np.repeat(np.arange(600), 2))
    return str(path)


def run(capsys, *arguments):
    code = main(["profile", *arguments])
    captured = capsys.readouterr()
    return code, captured.out, captured.err


def test_json_has_every_policy_capacity_and_table_and_opt(capsys, path):
    options = ("--simulate", "lru,next-use", "--capacity", "40,50%", "--batch-size", "20", "--json")
    code, out, err = run(capsys, path, *options)
    assert (code, err) == (0, "")
    result = json.loads(out)
    assert (result["num_accesses"], result["num_batches"], result["tables"]) == (1200, 30, ["item", "user"])
    simulations = result["simulations"]
    assert [each["policy"] for each in simulations] == ["lru", "next-use", "opt"] * 4
    assert {each["table"] for each in simulations} == {"item", "user"}
    assert simulations[0]["capacity"] == 40
    for each in simulations:
        assert each["hits"] + each["new"] + each["fetches"] == each["accesses"]
        assert each["tables"] == {each["table"]: {name: each[name] for name in ("hits", "new", "fetches")}}
    code, out, _ = run(capsys, path, *options, "--jointly")
    assert [len(each["tables"]) for each in json.loads(out)["simulations"]] == [2] * 6


def test_text_shows_the_same_numbers(capsys, path, golden):
    spec = SimulationSpec(
        policies=["lru", "next-use", "opt"],
        capacities=[Capacity(rows=20), Capacity(share=0.5)],
        batch_size=20,
        lookahead=4,
        jointly=True,
    )
    trace = read_trace(path)
    golden("profile.txt", simulations_report("trace.npz", trace, spec, list(simulate(trace, spec))))
    code, out, err = run(capsys, path, "--simulate", "lru", "--capacity", "40", "--batch-size", "20")
    assert (code, err) == (0, "")
    assert "item" in out


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ([], "Missing option"),
        (["--simulate", "fifo", "--capacity", "4", "--batch-size", "2"], "unknown policy 'fifo'"),
        (["--simulate", "", "--capacity", "4", "--batch-size", "2"], "needs a policy"),
        (["--simulate", "lru", "--capacity", "few", "--batch-size", "2"], "--capacity is a list"),
        (["--simulate", "lru", "--capacity", "0", "--batch-size", "2"], "--capacity is a list"),
        (["--simulate", "lru", "--capacity", "120%", "--batch-size", "2"], "--capacity is a list"),
        (["--simulate", "lru", "--capacity", "4", "--batch-size", "0"], "at least one sample"),
        (
            ["--simulate", "lru", "--capacity", "4", "--batch-size", "2", "--evict", "after", "--depth", "1"],
            "no batch to bring ahead",
        ),
    ],
)
def test_usage_errors_exit_2_with_one_line(capsys, path, options, message):
    code, out, err = run(capsys, path, *options)
    assert (code, out) == (EXIT_USAGE, "")
    assert err.startswith("mtrains: error: ")
    assert err.count("\n") == 1
    assert message in err


def test_failures_exit_1_with_one_line(capsys, tmp_path):
    (tmp_path / "text.npz").write_text("1\n2\n")
    options = ["--simulate", "lru", "--capacity", "4", "--batch-size", "2"]
    for name, message in (("absent.npz", "No such file"), ("text.npz", "no .npz file")):
        code, out, err = run(capsys, str(tmp_path / name), *options)
        assert (code, out) == (EXIT_FAILED, "")
        assert err.count("\n") == 1
        assert message in err
