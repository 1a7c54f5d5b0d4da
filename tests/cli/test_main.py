import json
import os
import signal
import subprocess
import sys
import warnings

import numpy as np
import pytest
import torch
from safetensors.torch import load_file

import mtrains
from mtrains.cli import main
from mtrains.cli.app import EXIT_FAILED, EXIT_INTERRUPTED, EXIT_USAGE
from mtrains.tiers.verify import Verdict

LINE = "\t".join(["1", *["3"] * 13, *["68fd1e64"] * 26]) + "\n"
SMALL = ["--bottom-mlp", "4", "--top-mlp", "4", "--embedding-dim", "4", "--rows", "100", "--batch-size", "8"]


@pytest.fixture(autouse=True)
def keep_showwarning():
    shown = warnings.showwarning
    yield
    warnings.showwarning = shown


@pytest.fixture
def clicks(tmp_path):
    path = tmp_path / "day.tsv"
    path.write_text(LINE * 40)
    return str(path)


def run(capsys, *arguments):
    code = main(list(arguments))
    captured = capsys.readouterr()
    return code, captured.out, captured.err


def one_line(text):
    return text.startswith("mtrains: error: ") and text.count("\n") == 1


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["train"], "Missing option '--data'"),
        (["train", "--data", "x", "--bogus"], "No such option: --bogus"),
        (["nothing"], "No such command 'nothing'"),
        (["train", "--data", "x", "--optimizer", "adam"], "'adam' is not one of 'sgd', 'adagrad'"),
        (["train", "--data", "x", "--format", "csv"], "the csv format needs --label and --categorical"),
        (["train", "--data", "x", "--format", "criteo", "--resume"], "--resume needs --store"),
        (["train", "--data", "x", "--format", "criteo", "--dram", "lots"], "not a size: 'lots'"),
        (["train", "--data", "x", "--format", "criteo", "--top-mlp", "a"], "--top-mlp is a list of widths"),
        (["train", "--data", "-", "--format", "criteo", "--holdout", "0.1"], "use --eval-data FILE"),
    ],
)
def test_usage_errors_exit_2_with_one_line(capsys, arguments, message):
    code, out, err = run(capsys, *arguments)
    assert code == EXIT_USAGE
    assert out == ""
    assert one_line(err)
    assert message in err


def test_failures_exit_1_with_one_line(capsys, tmp_path, clicks):
    bad = tmp_path / "bad.tsv"
    bad.write_text(LINE + "oops\n")
    empty = tmp_path / "empty"
    empty.touch()
    cases = {
        ("train", "--data", str(tmp_path / "absent")): "absent: No such file or directory",
        ("train", "--data", str(tmp_path)): "Is a directory",
        ("train", "--data", str(empty)): "empty is empty",
        ("train", "--data", "-"): "name the format of standard input",
        ("train", "--data", str(bad), *SMALL): "bad.tsv, line 2: 1 fields, 40 expected",
        ("train", "--data", clicks, "--holdout-samples", "40", *SMALL): "holding out 40 of 40 records",
        ("train", "--data", clicks, "--lr", "1e30", *SMALL): "try a smaller --lr",
        ("inspect", str(tmp_path / "absent")): "absent",
        ("verify", str(tmp_path / "absent")): "absent",
    }
    for arguments, message in cases.items():
        code, out, err = run(capsys, *arguments)
        assert (code, out) == (EXIT_FAILED, ""), arguments
        assert one_line(err), err
        assert message in err


def test_help_names_every_command(capsys):
    code, out, err = run(capsys, "--help")
    assert (code, err) == (0, "")
    assert all(f"\n  {command} " in out for command in ("train", "demo", "profile", "inspect", "verify", "export"))


def test_json_is_all_of_standard_output(capsys, tmp_path, clicks):
    store = str(tmp_path / "store")
    code, out, err = run(capsys, "train", "--data", clicks, "--store", store, "--json", *SMALL)
    assert (code, err) == (0, "")
    result = json.loads(out)
    assert (result["steps"], result["samples"], result["bad_lines"]) == (5, 40, 0)
    assert len(result["rows_sha256"]) == 64

    code, out, err = run(capsys, "inspect", store, "--json")
    assert (code, err) == (0, "")
    assert json.loads(out)
    code, out, err = run(capsys, "verify", store, "--json")
    assert (code, err) == (0, "")
    assert json.loads(out) == {"store": store, "ok": True, "problems": []}


def test_malformed_lines_are_named_on_standard_error_up_to_a_number(capsys, tmp_path):
    path = tmp_path / "bad.tsv"
    path.write_text(LINE + "oops\n" * 12 + LINE)
    code, out, err = run(
        capsys, "train", "--data", str(path), "--on-bad-line", "skip", "--epochs", "2", "--json", *SMALL
    )
    assert code == 0
    result = json.loads(out)
    assert (result["samples"], result["bad_lines"]) == (4, 12)
    lines = err.splitlines()
    assert lines[0] == f"mtrains: warning: left out: {path}, line 2: 1 fields, 40 expected"
    assert len(lines) == 11
    assert lines[10] == "mtrains: warning: 2 more malformed lines left out"


def test_a_problem_that_verify_finds_is_exit_1(capsys, monkeypatch):
    bad = Verdict(problems=["segment 3: bad"], served=None)
    monkeypatch.setattr("mtrains.tiers.verify.check_store", lambda path, rebuild=False: bad)
    assert run(capsys, "verify", "store") == (EXIT_FAILED, "segment 3: bad\n", "")
    code, out, _ = run(capsys, "verify", "store", "--json")
    assert code == EXIT_FAILED
    assert json.loads(out) == {"store": "store", "ok": False, "problems": ["segment 3: bad"]}


def _heed_interrupts():
    signal.signal(signal.SIGINT, signal.SIG_DFL)  # whoever runs the tests in the background may ignore them


def test_an_interrupt_closes_the_store_and_exits_130(tmp_path):
    fifo = tmp_path / "day.tsv"
    os.mkfifo(fifo)
    store = tmp_path / "store"
    command = [sys.executable, "-c", "import sys; from mtrains.cli import main; sys.exit(main())", "train"]
    command += ["--data", str(fifo), "--format", "criteo", "--store", str(store), *SMALL]
    command += ["--checkpoint-every", "1"]
    with (
        subprocess.Popen(command, stderr=subprocess.PIPE, text=True, preexec_fn=_heed_interrupts) as process,
        open(fifo, "w") as pipe,
    ):
        pipe.write(LINE * 4096)
        pipe.flush()
        # More than a pipe holds, so most of it has been read: the store is open and steps are under way.
        process.send_signal(signal.SIGINT)
        _, err = process.communicate(timeout=60)
    assert process.returncode == EXIT_INTERRUPTED
    assert err.splitlines()[-1] == "mtrains: interrupted"
    assert "Traceback" not in err
    done = subprocess.run([*command[:3], "verify", str(store)], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr


def test_without_a_command_the_help_is_shown_and_the_version_by_its_option(capsys):
    assert main([]) == 2
    assert "Commands:" in capsys.readouterr().out
    assert main(["--version"]) == 0
    assert capsys.readouterr().out.startswith("mtrains ")


def test_export_writes_the_last_checkpoint(capsys, tmp_path):
    store, folder = str(tmp_path / "store"), tmp_path
    with mtrains.Store(store, seed=1) as opened:
        tables = [
            mtrains.TieredEmbedding(50, 3, store=opened, name=name, dtype=dtype)
            for name, dtype in (("user", torch.float32), ("item", torch.bfloat16))
        ]
        tables[0].write_rows(torch.tensor([7]), torch.ones(1, 3))
        opened.checkpoint("a")
        user, item = (table.read_dense() for table in tables)

    path = str(folder / "user.safetensors")
    code, out, err = run(capsys, "export", store, "--table", "user", "--to", path)
    assert (code, err) == (0, "")
    assert out == f"{path}: table user, 704 B\n"
    assert torch.equal(load_file(path)["weight"], user)

    path = str(folder / "all.safetensors")
    code, out, err = run(capsys, "export", store, "--to", path, "--json")
    assert (code, err) == (0, "")
    size = os.stat(path).st_size
    assert json.loads(out) == {"store": store, "path": path, "tables": ["user", "item"], "bytes": size}
    assert torch.equal(load_file(path)["item.weight"], item)

    path = str(folder / "item.npy")
    code, out, err = run(capsys, "export", store, "--table", "item", "--to", path, "--dtype", "float32")
    assert (code, err) == (0, "")
    assert np.array_equal(np.load(path), item.float().numpy())

    path = str(folder / "tables")
    code, out, err = run(capsys, "export", store, "--to", path)
    assert (code, err) == (0, "")
    assert out.startswith(f"{path}: 2 tables, ")
    assert sorted(os.listdir(path)) == ["item.safetensors", "user.safetensors"]


@pytest.mark.parametrize(
    ("arguments", "code", "message"),
    [
        (["none", "--to", "x.npy"], EXIT_FAILED, "none is not a store"),
        (["store"], EXIT_USAGE, "Missing option '--to'"),
        (["store", "--table", "y", "--to", "x.npy"], EXIT_FAILED, "no table 'y'; its tables are: 't'"),
        (["store", "--to", "x.npy", "--dtype", "int8"], EXIT_USAGE, "'int8' is not one of"),
        (["store", "--to", "x.npy", "--dtype", "bfloat16"], EXIT_USAGE, "numpy has no bfloat16"),
        (["store", "--to", "x.npy", "--optimizer-state"], EXIT_FAILED, "no optimizer state to export"),
        (["store", "--to", "none/x.npy"], EXIT_FAILED, "No such file or directory"),
        (["store", "--to", "."], EXIT_FAILED, "is there already and is no empty folder"),
    ],
)
def test_an_export_that_cannot_be_is_one_line_and_leaves_nothing(
    capsys, tmp_path, monkeypatch, arguments, code, message
):
    monkeypatch.chdir(tmp_path)
    with mtrains.Store("store", seed=1) as opened:
        mtrains.TieredEmbedding(5, 3, store=opened, name="t")
        opened.checkpoint("a")
    got, out, err = run(capsys, "export", *arguments)
    assert (got, out) == (code, "")
    assert one_line(err)
    assert message in err
    assert os.listdir() == ["store"]
