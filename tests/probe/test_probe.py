"""Measuring a machine: what comes out is a topology; how fast the machine is, no test can know."""

import json
import os

import pytest
import torch

from mtrains.cli import main
from mtrains.cli.render_probe import probe_report
from mtrains.placement.topology_file import load_topology
from mtrains.probe.machine import ProbeOptions, probe
from mtrains.probe.memory import RECORD_BYTES, measure_link, measure_memory

SMALL = ProbeOptions(seconds=0.05, memory_bytes=4 << 20, file_bytes=4 << 20, num_rows=40_000)


@pytest.fixture(scope="module")
def probed(tmp_path_factory):
    folder = tmp_path_factory.mktemp("disk")
    told = []
    made = probe(folder, SMALL, began=told.append)
    assert os.listdir(folder) == []
    assert [what.split(":")[0] for what in told[:3]] == ["memory", "disk", "engine"]
    return made


def test_a_probe_is_a_topology_file(probed, tmp_path):
    probed.save(tmp_path / "machine.json")
    read = load_topology(tmp_path / "machine.json")
    assert read == probed.topology
    dram = read.slots[-1]
    assert (dram.tier, read.static, read.nodes) == ("dram", False, 1)
    assert dram.read_bytes_per_second == probed.memory.gather[256]
    assert read.log.read_iops == max(probed.disk.reads_per_second.values())
    assert read.log.read_bytes_per_second >= 4096 * read.log.read_iops
    assert read.log.write_bytes_per_second == probed.engine.write_bytes_per_second
    assert read.cpu.cores == len(os.sched_getaffinity(0))
    assert 0 < dram.capacity_bytes < 1e15
    json.dumps(probed.to_dict(), allow_nan=False)


def test_every_rate_is_positive(probed):
    assert set(probed.disk.reads_per_second) == {1, 8, 32, 128}
    assert set(probed.memory.gather) == set(probed.memory.scatter) == set(RECORD_BYTES)
    rates = [probed.memory.copy, *probed.memory.gather.values(), *probed.memory.scatter.values()]
    rates += [*probed.disk.reads_per_second.values(), probed.disk.bytes_per_second, probed.disk.cpu_seconds_per_read]
    rates += [probed.engine.write_bytes_per_second, probed.engine.cpu_seconds_per_row]
    assert all(rate > 0 for rate in rates)
    assert min(probed.engine.cpu_seconds_per_hit, probed.engine.cpu_seconds_per_miss) >= 0


def test_what_an_accelerator_is_asked_works_on_any_device():
    device = torch.device("cpu")
    assert measure_memory(device, 1 << 20, 0.02).gather[64] > 0
    link = measure_link(device, 0.02)
    assert min(link.up, link.down) > 0


def test_the_report_has_the_figures_and_what_was_not_measured(probed, capsys):
    from rich.console import Console

    Console(width=120).print(probe_report(probed))
    text = capsys.readouterr().out
    for words in ("128 in flight", "256-byte rows gathered, scattered", "CPU: the read of its block", "endurance"):
        assert words in text


def test_the_command_writes_the_file_and_says_what_it_did(tmp_path, capsys, monkeypatch):
    from mtrains.probe import machine

    monkeypatch.setattr(machine, "ProbeOptions", lambda **given: SMALL)
    out = str(tmp_path / "machine.json")
    assert main(["plan", "--probe", str(tmp_path), "--probe-seconds", "0.1", "-o", out]) == 0
    captured = capsys.readouterr()
    assert load_topology(out).name == "probed"
    assert f"written to {out}: mtrains plan PROFILE --topology {out}" in captured.out
    assert "mtrains: measuring disk: 4 KiB reads of a 4 MiB file" in captured.err
    assert main(["plan", "--probe", str(tmp_path), "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["topology"]["name"] == "probed"


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["--probe", "no/such"], "--probe no/such: give a folder on the disk"),
        (["--probe", ".", "-o", "machine.yaml"], "a topology is written as JSON"),
        (["--probe", ".", "--topology", "reference"], "use its file as --topology afterwards"),
        (["--probe", ".", "--nodes", "tiny"], "or --probe FOLDER to measure"),
        (["--probe-seconds", "3", "x.json"], "--probe-seconds goes with --probe"),
    ],
)
def test_usage_errors_exit_2_with_one_line(capsys, arguments, said):
    assert main(["plan", *arguments]) == 2
    captured = capsys.readouterr()
    assert captured.out == ""
    assert said in captured.err
    assert captured.err.count("\n") == 1
