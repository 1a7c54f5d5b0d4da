"""`mtrains profile DATA`: measuring a profile."""

import gzip
import json
import lzma
from pathlib import Path

import numpy as np
import pyarrow
import pyarrow.parquet
import pytest
import torch

from mtrains.cli import main
from mtrains.cli.app import EXIT_FAILED, EXIT_USAGE
from mtrains.cli.render_profile import profile_report
from mtrains.profiler.pictures import PICTURES
from mtrains.profiler.profile import LocalityProfile

DATA = Path(__file__).resolve().parents[3] / "shared" / "data"


def run(capsys, *arguments):
    code = main(["profile", *map(str, arguments)])
    captured = capsys.readouterr()
    return code, captured.out, captured.err


def lookups(num=6000):
    """Rows of two tables by turns, skewed."""
    access = np.arange(num)
    return 200 // (access**2 * 7 % 97 + 1) + access // 500, np.tile(["item", "user"], num // 2)


@pytest.fixture
def trace(tmp_path):
    row, table = lookups()
    np.savez_compressed(tmp_path / "trace.npz", row=row, table=table, sample=np.repeat(np.arange(3000), 2))
    return tmp_path / "trace.npz"


def as_parquet(npz, path):
    with np.load(npz) as file:
        pyarrow.parquet.write_table(pyarrow.table(dict(file)), path, row_group_size=1000)
    return path


def without_paths(path):
    return {**json.loads(Path(path).read_text()), "source": "", "source_sha256": []}


def test_a_trace_becomes_a_profile_that_plan_takes(capsys, tmp_path, trace):
    out = tmp_path / "profile.json"
    code, text, err = run(capsys, trace, "--batch-size", "100", "-o", out, "--rate", "5000")
    assert (code, err) == (0, f"wrote {out}\n")
    assert "read at 5,000/s" in text
    profile = LocalityProfile.load(out)
    assert [table.name for table in profile.tables] == ["item", "user"]
    assert (profile.samples, len(profile.source_sha256)) == (3000, 1)
    row, table = lookups()
    for measured in profile.tables:
        mine = row[table == measured.name]
        assert measured.num_embeddings == mine.max() + 1
        assert measured.touched_rows == len(np.unique(mine))
        curve = measured.curve(policy="next_use", lookahead=64, depth=2, batch_size=100)
        unique = [len(np.unique(part)) for part in np.split(mine, 30)]
        assert curve.unique_rows == pytest.approx(np.mean(unique))
    assert main(["plan", str(out), "--topology", "reference", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["workload"]["batch_size"] == 100


def test_npz_and_parquet_of_one_trace_are_one_profile(capsys, tmp_path, trace):
    parquet = as_parquet(trace, tmp_path / "trace.parquet")
    for path in (trace, parquet):
        assert run(capsys, path, "--batch-size", "100", "-o", f"{path}.json")[0] == 0
    assert without_paths(f"{trace}.json") == without_paths(f"{parquet}.json")


def test_json_has_the_figures_and_names_the_files(capsys, tmp_path, trace):
    options = ("--batch-size", "100", "--json", "-o", tmp_path / "p.json.gz", "--plot", tmp_path / "pictures")
    code, out, err = run(capsys, trace, *options)
    assert (code, err) == (0, "")
    result = json.loads(out)
    assert (result["samples"], result["batch_sizes"]) == (3000, [25, 50, 100, 200, 400])
    assert result["profile"] == str(tmp_path / "p.json.gz")
    assert gzip.decompress((tmp_path / "p.json.gz").read_bytes())
    files = {Path(path).name for path in result["pictures"]}
    assert files == {f"{name}.{suffix}" for name in PICTURES for suffix in ("png", "svg")}
    assert all((tmp_path / "pictures" / name).stat().st_size > 1000 for name in files)
    item = result["tables"][0]
    assert (item["name"], item["lookups_per_sample"], item["unique_bytes_per_second"]) == ("item", 1.0, None)
    assert 0 < item["hit_ratio"]["0.2"] <= 1


def test_text_shows_the_same_numbers(capsys, tmp_path, trace, golden):
    assert run(capsys, trace, "--batch-size", "100", "-o", tmp_path / "p.json", "--json")[0] == 0
    content = {**json.loads((tmp_path / "p.json").read_text()), "source": "trace.npz"}
    golden("measured_profile.txt", profile_report(LocalityProfile.from_dict(content), 100, 5000.0))


def test_large_tables_are_sampled_and_memory_is_bounded(capsys, tmp_path):
    rng = np.random.default_rng(0)
    np.savez(tmp_path / "t.npz", row=rng.integers(0, 1 << 40, 300_000))
    code, out, err = run(capsys, tmp_path / "t.npz", "--batch-size", "1000", "--max-rows", "500", "--json")
    (table,) = json.loads(out)["tables"]
    assert (code, err) == (0, "")
    assert table["tracked_rows"] <= 500
    assert table["touched_rows"] == pytest.approx(300_000, rel=0.15)
    code, out, err = run(
        capsys, tmp_path / "t.npz", "--batch-size", "4", "--max-rows", "500", "--max-accesses", "300", "--json"
    )
    assert code == 0
    assert json.loads(out)["samples"] < 300_000
    assert "mtrains: warning: the profile is of the first" in err
    assert "--max-accesses" in err
    assert err.count("\n") == 1


def test_the_first_samples_alone(capsys, trace):
    code, out, _ = run(capsys, trace, "--batch-size", "10", "--max-samples", "777", "--json")
    result = json.loads(out)
    assert (code, result["samples"], [table["lookups_per_sample"] for table in result["tables"]]) == (0, 777, [1, 1])


# --- click logs


def test_click_logs_are_read_as_train_reads_them(capsys, tmp_path):
    lines = ["click\tuser\ttags"]
    lines += [f"{i % 2}\tu{i % 30}\t{'^'.join(str(i % n) for n in range(1, i % 4 + 1))}" for i in range(900)]
    (tmp_path / "log.tsv").write_text("\n".join(lines) + "\n")
    code, out, err = run(
        capsys, tmp_path / "log.tsv", "--label", "click", "--categorical", "user", "--bag", "tags:^",
        "--rows", "1000", "--table-rows", "user=50", "--table-dim", "tags=64", "--batch-size", "30", "--json",
    )  # fmt: skip
    user, tags = json.loads(out)["tables"]
    assert (code, err) == (0, "")
    assert (user["num_embeddings"], user["embedding_dim"], user["unique_rows_per_batch"] <= 30) == (50, 16, True)
    assert (tags["num_embeddings"], tags["embedding_dim"], tags["lookups_per_sample"]) == (1000, 64, 1.5)


def test_malformed_lines_are_named(capsys, tmp_path):
    (tmp_path / "log.csv").write_text("click,user\n1,a\nyes,b\n0,c\n")
    options = ("--label", "click", "--categorical", "user", "--batch-size", "4")
    code, out, err = run(capsys, tmp_path / "log.csv", *options)
    assert (code, out) == (EXIT_FAILED, "")
    assert "line 3" in err
    code, out, err = run(capsys, tmp_path / "log.csv", *options, "--on-bad-line", "skip", "--json")
    assert (code, json.loads(out)["samples"]) == (0, 2)
    assert "left out" in err


@pytest.mark.skipif(not DATA.is_dir(), reason=f"needs the data sets of {DATA}")
def test_recorded_click_logs(capsys, tmp_path):
    code, out, _ = run(capsys, DATA / "criteo_dev_head1999.tsv", "--batch-size", "128", "--json")
    result = json.loads(out)
    assert (code, result["samples"], len(result["tables"])) == (0, 1999, 26)
    column = [line.split("\t")[16] for line in (DATA / "criteo_dev_head1999.tsv").read_text().splitlines()]
    assert result["tables"][2]["touched_rows"] == pytest.approx(len(set(column)), abs=15)  # some share a hash
    flights = tmp_path / "flights.tsv"
    with lzma.open(DATA / "nycflights13_ctr.tsv.xz", "rt") as source:
        lines = [next(source) for _ in range(20_001)]
    flights.write_text("".join(lines))
    carrier = [line.split("\t")[lines[0].split("\t").index("carrier")] for line in lines[1:]]
    options = ("--label", "late", "--categorical", "carrier,tailnum", "--batch-size", "1024", "--rows", "1000000")
    code, out, _ = run(capsys, flights, *options, "--json")
    carriers, tails = json.loads(out)["tables"]
    assert (code, carriers["touched_rows"]) == (0, len(set(carrier)))
    assert tails["touched_rows"] > 2000


# --- batches of FBGEMM's benchmarks


def bags(tmp_path, name="batch.pt", *, drop_lengths=False, as_dict=False):
    lengths = torch.tensor([[2, 0, 1, 3], [1, 1, 1, 1]], dtype=torch.int32)
    offsets = torch.cat([torch.zeros(1, dtype=torch.int64), lengths.flatten().cumsum(0)])
    indices = torch.tensor([5, 5, 7, 7, 8, 5, 0, 1, 0, 1])
    parts = {"indices": indices, "offsets": offsets, "lengths": lengths}
    if drop_lengths:
        del parts["lengths"]
    torch.save(parts if as_dict else tuple(parts.values()), tmp_path / name)
    return tmp_path / name


@pytest.mark.parametrize("as_dict", [False, True])
def test_fbgemm_batches_are_samples_of_each_table(capsys, tmp_path, as_dict):
    first, second = bags(tmp_path, as_dict=as_dict), bags(tmp_path, "next.pt", drop_lengths=True)
    code, out, err = run(capsys, first, second, "--num-tables", "2", "--batch-size", "4", "--json")
    result = json.loads(out)
    assert (code, err, result["samples"]) == (0, "", 8)
    found = [
        (table["name"], table["lookups_per_sample"], table["unique_rows_per_batch"], table["touched_rows"])
        for table in result["tables"]
    ]
    assert found == [("table0", 1.5, 3.0, 3), ("table1", 1.0, 2.0, 2)]


def test_what_is_no_batch_is_refused(capsys, tmp_path):
    torch.save({"a": 1}, tmp_path / "no.pt")
    torch.save((torch.zeros(3), torch.tensor([0, 3])), tmp_path / "floats.pt")
    torch.save((torch.tensor([1, 2]), torch.tensor([0, 2, 1, 2])), tmp_path / "descending.pt")
    torch.save((torch.tensor([1, 2]), torch.tensor([0, 2, 2, 2])), tmp_path / "odd.pt")
    (tmp_path / "text.pt").write_text("hello")
    for arguments, message in (
        (["no.pt"], "holds no batch of lookups"),
        (["floats.pt"], "indices are torch.float32"),
        (["descending.pt", "--num-tables", "1"], "offsets must ascend from 0 to 2"),
        (["odd.pt", "--num-tables", "2"], "4 offsets are not those of 2 tables"),
        (["text.pt"], "is no file of torch.save"),
        (["odd.pt"], "give --num-tables"),
        (["absent.pt"], "No such file"),
    ):
        code, out, err = run(capsys, tmp_path / arguments[0], *arguments[1:], "--batch-size", "4")
        assert (code, out) == (EXIT_FAILED, ""), message
        assert message in err
        assert err.count("\n") == 1


# --- errors


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--batch-size", "0"], "at least one sample"),
        (["--batch-size", "4", "--max-rows", "1"], "at least 2 rows"),
        (["--batch-size", "4", "--lookahead", "-1"], "lookahead"),
        (["--batch-size", "4", "--capacity", "10"], "go with --simulate"),
        (["--batch-size", "4", "--table-rows", "shop=5"], "none of the tables: item, user"),
        (["--batch-size", "4", "--table-dim", "item=x"], "--table-dim is NAME=N"),
        (["--batch-size", "4", "--label", "click"], "are of click logs"),
        (["--batch-size", "4", "--embedding-dim", "0"], "are no table"),
        (["--batch-size", "4", "--simulate", "lru"], "--simulate needs --capacity"),
        (["--batch-size", "4", "--simulate", "lru", "--capacity", "3", "-o", "x"], "go with a profile"),
        (["other.npz", "--batch-size", "4"], "a trace is one file"),
        (["other.npz", "--batch-size", "4", "--simulate", "lru", "--capacity", "3"], "takes one trace"),
    ],
)
def test_usage_errors_exit_2_with_one_line(capsys, trace, options, message):
    code, out, err = run(capsys, trace, *options)
    assert (code, out) == (EXIT_USAGE, "")
    assert err.startswith("mtrains: error: ")
    assert err.count("\n") == 1
    assert message in err


def test_bad_traces_exit_1_with_one_line(capsys, tmp_path, trace):
    whole = trace.read_bytes()
    (tmp_path / "cut.npz").write_bytes(whole[: len(whole) // 2])
    np.savez(tmp_path / "norow.npz", table=np.arange(3))
    np.savez(tmp_path / "floats.npz", row=np.arange(3.0))
    np.savez(tmp_path / "flat.npz", row=np.zeros((2, 2), np.int64))
    np.savez(tmp_path / "lengths.npz", row=np.arange(3), sample=np.arange(2))
    np.savez(tmp_path / "back.npz", row=np.arange(3), sample=np.array([0, 2, 1]))
    np.savez(tmp_path / "empty.npz", row=np.zeros(0, np.int64))
    np.savez(tmp_path / "names.npz", row=np.arange(2), table=np.array([0.5, 1.5]))
    pyarrow.parquet.write_table(pyarrow.table({"row": [1, None]}), tmp_path / "nulls.parquet")
    (tmp_path / "text.parquet").write_text("row\n1\n")
    for name, message in (
        ("cut.npz", "is no .npz file"),
        ("norow.npz", "has no column row"),
        ("floats.npz", "column row holds float64"),
        ("flat.npz", "has shape (2, 2)"),
        ("lengths.npz", "differ in length"),
        ("back.npz", "not at access 2"),
        ("empty.npz", "no lookups to profile"),
        ("names.npz", "neither integers nor names"),
        ("nulls.parquet", "has nulls"),
        ("text.parquet", "as Parquet"),
        ("absent.npz", "No such file"),
    ):
        code, out, err = run(capsys, tmp_path / name, "--batch-size", "2")
        assert (code, out) == (EXIT_FAILED, ""), name
        assert message in err
        assert err.count("\n") == 1


def test_rows_outside_a_table_are_named(capsys, trace):
    code, out, err = run(capsys, trace, "--batch-size", "4", "--table-rows", "user=5")
    assert (code, out) == (EXIT_FAILED, "")
    assert "table 'user', sample" in err
    assert "not in [0, 5)" in err
