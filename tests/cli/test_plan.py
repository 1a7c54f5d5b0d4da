import json

import pytest

from mtrains.cli import main
from mtrains.cli.plan_nodes import answer_nodes, choose_model
from mtrains.cli.render_nodes import nodes_report
from mtrains.cli.render_plan import plan_report
from mtrains.placement.plan import PlacementPlan
from mtrains.placement.planner import plan
from mtrains.placement.topology_file import topology_of_dict
from mtrains.placement.workload import Workload
from mtrains.profiler.profile import LocalityCurve, LocalityProfile, TableProfile

MACHINE = {
    "name": "small",
    "slots": [
        {
            "tier": "dram",
            "device": "some DDR4",
            "capacity_bytes": "40MiB",
            "read_bytes_per_second": 20e9,
            "write_bytes_per_second": 10e9,
            "cost_per_gib": 4.0,
        },
        {"device": "optane-pmem-100-128", "capacity_bytes": "16MiB"},
    ],
    "log": {
        "device": "some SSD",
        "capacity_bytes": "1GiB",
        "read_iops": 50_000,
        "read_bytes_per_second": 200e6,
        "write_bytes_per_second": 100e6,
    },
}


def table(name, rows, dim, hits, unique):
    curve = LocalityCurve(
        policy="next_use",
        lookahead=64,
        depth=2,
        batch_size=1000,
        unique_rows=unique,
        pinned_rows=2.0 * unique,
        new_rows=5.0,
        capacity_rows=tuple(rows * share for share in (0.125, 0.5, 1.0)),
        hits=hits,
        fetches=tuple(unique - 5.0 - one for one in hits),
        pages_per_fetch=(0.5, 0.25, 0.25),
    )
    return TableProfile(
        name=name,
        num_embeddings=rows,
        embedding_dim=dim,
        dtype="float32",
        touched_rows=rows,
        lookups_per_sample=1.5,
        footprint=(),
        curves=(curve,),
    )


PROFILE = LocalityProfile(
    tables=(
        table("user", 200_000, 64, (300.0, 600.0, 795.0), 800.0),
        table("item", 50_000, 16, (500.0, 580.0, 595.0), 600.0),
        table("city", 100, 16, (50.0, 55.0, 60.0), 65.0),
    ),
    samples=1e6,
    source="made up",
)


@pytest.fixture
def files(tmp_path):
    PROFILE.save(tmp_path / "profile.json")
    (tmp_path / "machine.json").write_text(json.dumps(MACHINE))
    return str(tmp_path / "profile.json"), str(tmp_path / "machine.json")


def run(capsys, *arguments):
    code = main(list(arguments))
    captured = capsys.readouterr()
    return code, captured.out, captured.err


def test_the_text_of_a_plan(golden):
    golden("plan.txt", plan_report(plan(PROFILE, topology_of_dict(MACHINE))))


def test_the_text_of_the_nodes(golden):
    model = choose_model("12t-meta", lookups=None, distinct_share=None, dtype=None)
    golden("plan_nodes.txt", nodes_report(answer_nodes("12t-meta", model, [], 200_000.0, Workload(), None)))


def test_json_is_the_plan_and_the_file(capsys, files, tmp_path):
    profile, machine = files
    out = str(tmp_path / "plan.json")
    code, text, _ = run(capsys, "plan", profile, "--topology", machine, "--json", "-o", out)
    assert code == 0
    made = json.loads(text)
    assert made == json.loads((tmp_path / "plan.json").read_text())
    assert PlacementPlan.load(out).to_dict() == PlacementPlan.from_dict(made).to_dict()
    assert {one["name"] for one in made["tables"]} == {"user", "item", "city"}


def test_a_rate_takes_only_what_it_needs_or_exits_1_with_the_numbers(capsys, files):
    profile, machine = files
    code, text, _ = run(capsys, "plan", profile, "--topology", machine, "--target-rate", "20000", "--json")
    assert code == 0
    assert json.loads(text)["samples_per_second"] >= 20_000
    code, text, errors = run(capsys, "plan", profile, "--topology", machine, "--target-rate", "1e9")
    assert (code, text) == (1, "")
    assert errors.startswith("mtrains: error: 1,000,000,000 samples/s are out of reach on small: the fastest placement")
    assert "log IOPS needs" in errors
    assert errors.count("\n") == 1


def test_nodes_take_a_model_with_other_figures_or_a_profile(capsys, files):
    profile, machine = files
    arguments = ["plan", "--nodes", "12t-dcnv2", "--target-rate", "2e5", "--json"]
    servers = ["--server", "hbm+dram", "--server", "+8xp5800x"]
    code, text, _ = run(capsys, *arguments, *servers, "--dtype", "float32", "--lookups", "100")
    assert code == 0
    answer = json.loads(text)
    assert [one["nodes"] for one in answer["servers"]] == [30, 4]
    assert answer["assumptions"]["lookups_per_sample"] == 100
    code, text, _ = run(capsys, "plan", "--nodes", profile, "--server", machine, "--target-rate", "2e6", "--json")
    assert code == 0
    assert json.loads(text)["servers"][0]["nodes"] > 1


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["plan"], "give a PROFILE to place, --nodes MODEL"),
        (["plan", "PROFILE"], "--topology says on what to place"),
        (["plan", "PROFILE", "--topology", "nope"], "no topology 'nope'"),
        (["plan", "PROFILE", "--topology", "reference", "--optimizer", "adam"], "optimizer must be one of none, sgd"),
        (["plan", "PROFILE", "--topology", "reference", "--dtype", "float16"], "go with --nodes"),
        (["plan", "--nodes", "13t", "--target-rate", "1"], "no model '13t'"),
        (["plan", "--nodes", "12t-meta"], "--nodes needs --target-rate"),
        (["plan", "--nodes", "tiny", "--target-rate", "1", "--lookups", "3"], "is for models of one table"),
        (["plan", "--nodes", "PROFILE", "--target-rate", "1", "--dtype", "float16"], "figures of a named model"),
        (["plan", "--nodes", "tiny", "--target-rate", "1", "--topology", "reference"], "use --server"),
    ],
)
def test_usage_errors_exit_2_with_one_line(capsys, files, arguments, message):
    code, out, errors = run(capsys, *(files[0] if one == "PROFILE" else one for one in arguments))
    assert (code, out) == (2, "")
    assert message in errors
    assert errors.count("\n") == 1


def test_a_profile_that_is_none_or_lacks_the_curves_exits_1(capsys, files, tmp_path):
    (tmp_path / "odd.json").write_text("{}")
    code, _, errors = run(capsys, "plan", str(tmp_path / "odd.json"), "--topology", "reference")
    assert code == 1
    assert "odd.json has profile format None" in errors
    code, _, errors = run(capsys, "plan", files[0], "--topology", "reference", "--batch-size", "7")
    assert code == 1
    assert "make the profile with batch size 7" in errors
