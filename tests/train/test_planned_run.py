"""`mtrains train --plan`: the plan's memory, and the run beside what it promised."""

import dataclasses
import json

import numpy as np
import pytest

from mtrains.cli import main
from mtrains.placement.planner import plan
from mtrains.placement.topology import LogTier, SlotTier, Topology
from mtrains.placement.workload import Workload
from mtrains.profiler.profile import LocalityCurve, LocalityProfile, TableProfile

ROWS = {"user": 300, "item": 40}
BATCH = 16


def table(name, rows):
    capacities = (rows / 4, rows / 2, float(rows))
    curve = LocalityCurve(
        policy="lru",
        lookahead=0,
        depth=0,
        batch_size=BATCH,
        unique_rows=12.0,
        pinned_rows=16.0,
        new_rows=1.0,
        capacity_rows=capacities,
        hits=(4.0, 8.0, 11.0),
        fetches=(7.0, 3.0, 0.0),
        pages_per_fetch=(1.0, 1.0, 1.0),
    )
    return TableProfile(
        name=name,
        num_embeddings=rows,
        embedding_dim=4,
        dtype="float32",
        touched_rows=rows,
        lookups_per_sample=1.0,
        footprint=(),
        curves=(curve,),
    )


@pytest.fixture
def files(tmp_path):
    """A plan, and clicks of the tables that it is for."""
    random = np.random.default_rng(0)
    lines = ["click,price,user,item"]
    lines += [f"{random.integers(2)},1.0,{random.integers(900)},{random.integers(90)}" for _ in range(400)]
    (tmp_path / "clicks.csv").write_text("\n".join(lines) + "\n")
    made = plan(
        LocalityProfile(tables=tuple(table(name, rows) for name, rows in ROWS.items()), samples=400.0),
        Topology(
            name="small",
            slots=(
                SlotTier(
                    tier="dram",
                    device="DDR",
                    capacity_bytes=10_500.0,
                    read_bytes_per_second=1e9,
                    write_bytes_per_second=1e9,
                ),
            ),
            log=LogTier(
                device="SSD",
                capacity_bytes=1e9,
                read_iops=1e4,
                read_bytes_per_second=4e7,
                write_bytes_per_second=4e7,
            ),
        ),
        workload=Workload(policy="lru", lookahead=0, depth=0, writer_bytes=0),
    )
    made.save(tmp_path / "plan.json")
    return tmp_path, made


def arguments(folder, *more):
    rows = [f"--table-rows={name}={count}" for name, count in ROWS.items()]
    data = ["--data", str(folder / "clicks.csv"), "--label", "click", "--dense", "price", "--categorical", "user,item"]
    model = ["--embedding-dim", "4", "--bottom-mlp", "4", "--top-mlp", "4", "--batch-size", str(BATCH)]
    model += ["--lookahead", "0", "--depth", "0"]  # as the plan's workload
    return ["train", *data, *rows, *model, "--plan", str(folder / "plan.json"), *more]


def test_a_run_has_the_plans_memory_and_is_told_beside_it(files, capsys):
    folder, made = files
    assert main(arguments(folder, "--optimizer", "rowwise_adagrad", "--json")) == 0
    result = json.loads(capsys.readouterr().out)
    assert result["tiers"]["dram"]["used_bytes"] <= sum(one.bytes["dram"] for one in made.tables)
    assert result["tiers"]["dram"]["slots"] == sum(0 if one.resident else one.rows["dram"] for one in made.tables)
    told = result["plan"]
    assert told["steps"] == 25
    (warning,) = told["warnings"]
    assert "the plan knows no computation, so its time is of moving rows alone; plan with --compute-seconds" in warning
    assert told["step_seconds"]["predicted"] == made.step_seconds
    assert [one["name"] for one in told["tables"]] == ["user", "item"]
    for one in told["tables"]:
        whole = one["hit_ratios"]["dram"]["measured"] * one["accesses"]["measured"]
        assert whole + one["new"]["measured"] + one["fetches"]["measured"] == pytest.approx(one["accesses"]["measured"])
    assert told["fetches"]["measured"] * told["steps"] == result["tiers"]["dram"]["fetches"]


def test_the_text_names_what_differs_between_plan_and_run(files, capsys):
    folder, made = files
    other = dataclasses.replace(made, batch_size=64, workload={**made.workload, "lookahead": 8, "policy": "next_use"})
    other.save(folder / "plan.json")
    assert main(arguments(folder, "--optimizer", "rowwise_adagrad")) == 0
    text = " ".join(capsys.readouterr().out.split())
    assert "the plan against 25 steps" in text
    assert "note: the plan is of eviction by next_use (lookahead 8, depth 0), this run evicted by lru" in text
    assert "note: the plan is of batches of 64 samples, this run had 16" in text


@pytest.mark.parametrize(
    ("more", "code", "said"),
    [
        (["--dram", "1GiB"], 2, "--plan says what each table has in each tier, so --dram contradicts it"),
        (["--scm", "1GiB"], 2, "so --scm contradicts it"),
        (["--scm-emulate", "nope"], 2, "emulate must be one of"),
        (["--scm-emulate", "optane-pmem-100"], 1, "uses no SCM tier, so --scm-emulate has nothing to say"),
        (["--optimizer", "adagrad"], 1, "plan again with this optimizer"),
        (["--optimizer", "rowwise_adagrad", "--table-rows", "user=7"], 1, "not fit table 'user': planned 300 rows"),
        (["--plan", "no/such.json"], 1, "cannot use no/such.json: No such file or directory"),
    ],
)
def test_what_contradicts_the_plan_is_one_line(files, capsys, more, code, said):
    folder, _ = files
    assert main(arguments(folder, *more)) == code
    captured = capsys.readouterr()
    assert captured.out == ""
    assert said in captured.err
    assert captured.err.count("mtrains: error") == 1


def test_a_resumed_run_counts_its_own_steps(files, capsys):
    folder, _ = files
    own = ["--optimizer", "rowwise_adagrad", "--store", str(folder / "rows"), "--json"]
    assert main(arguments(folder, *own, "--max-steps", "10")) == 0
    capsys.readouterr()
    assert main(arguments(folder, *own, "--resume")) == 0
    assert json.loads(capsys.readouterr().out)["plan"]["steps"] == 15
