import json
import sys

import pytest

from mtrains.errors import FormatError
from mtrains.placement.device_presets import LOG_DEVICES, SLOT_DEVICES
from mtrains.placement.presets import TOPOLOGIES, log_of, slots_of
from mtrains.placement.topology import SlotTier, Topology
from mtrains.placement.topology_file import load_topology, topology_of_dict, topology_to_dict

TOML = """
name = "mine"
[[slots]]
tier = "dram"
device = "DDR"
capacity_bytes = "16GiB"
read_bytes_per_second = 20e9
write_bytes_per_second = "10GB"
[[slots]]
device = "optane-pmem-100-128"
count = 6
cost_per_gib = 1.5
[log]
device = "pm9a3-7680"
[cpu]
cores = 8
"""
DICT = {
    "slots": [
        {
            "tier": "dram",
            "device": "DDR",
            "capacity_bytes": "16GiB",
            "read_bytes_per_second": 20e9,
            "write_bytes_per_second": 10e9,
        }
    ]
}


@pytest.mark.skipif(sys.version_info < (3, 11), reason="tomllib came with Python 3.11")
def test_a_machine_from_toml(tmp_path):
    (tmp_path / "mine.toml").write_text(TOML)
    machine = load_topology(tmp_path / "mine.toml")
    assert machine.name == "mine"
    assert machine.tier_names == ("dram", "scm")
    dram, scm = machine.slots
    assert (dram.capacity_bytes, dram.write_bytes_per_second) == (16 * 2**30, 10**10)
    assert scm.capacity_bytes == 6 * 128e9
    assert (scm.one_medium, scm.granule_bytes, scm.cost_per_gib) == (True, 256, 1.5)
    assert machine.log == log_of("pm9a3-7680")
    assert machine.cpu.cores == 8
    assert machine.link is None


@pytest.mark.parametrize("name", TOPOLOGIES)
def test_presets_are_named_have_sources_and_survive_a_file(name, tmp_path):
    machine = load_topology(name)
    assert machine.name == name
    assert all(slot.source for slot in machine.slots)
    (tmp_path / "copy.json").write_text(json.dumps(topology_to_dict(machine)))
    assert load_topology(tmp_path / "copy.json") == machine


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"slots": []}, "needs \\[\\[slots\\]\\]"),
        ({"speed": 1}, "topology has no field 'speed'"),
        ({"log": {"capacity_bytes": 5}}, "log lacks device, read_iops"),
        ({"log": {"device": "nothing", "count": 2}}, "no disk 'nothing'"),
        ({"slots": [{**DICT["slots"][0], "tier": "tape"}]}, "one of hbm, dram, scm, got 'tape'"),
        ({"slots": [{**DICT["slots"][0], "read_bytes_per_second": 0}]}, "read_bytes_per_second must be finite and > 0"),
        ({"slots": [{**DICT["slots"][0], "capacity_bytes": "lots"}]}, "not a size: 'lots'"),
        ({"slots": DICT["slots"] * 2}, "each once at most"),
        ({"cpu": {"cores": 2, "watts": 3}}, "cpu has no field 'watts'"),
    ],
)
def test_what_is_no_machine_is_refused_by_field(tmp_path, change, message):
    (tmp_path / "bad.json").write_text(json.dumps({**DICT, **change}))
    with pytest.raises(FormatError, match=message) as error:
        load_topology(tmp_path / "bad.json")
    assert "bad.json" in str(error.value)


def test_a_name_that_is_neither_preset_nor_file():
    with pytest.raises(ValueError, match=r"no topology 'nope'.*reference"):
        load_topology("nope")
    with pytest.raises(OSError, match="nowhere"):
        load_topology("nowhere.toml")


def test_several_machines_have_the_sum_of_everything():
    one = TOPOLOGIES["+pmem-12x256+8xpm9a3"]
    three = one.times(3)
    assert three.nodes == 3
    for few, many in zip(one.slots, three.slots, strict=True):
        assert many.capacity_bytes == 3 * few.capacity_bytes
        assert many.read_bytes_per_second == 3 * few.read_bytes_per_second
    assert three.log.read_iops == 3 * one.log.read_iops
    assert three.log.endurance_bytes_per_day == 3 * one.log.endurance_bytes_per_day
    assert three.link.up_bytes_per_second == 3 * one.link.up_bytes_per_second
    assert three.compute_samples_per_second == 3 * one.compute_samples_per_second


def test_devices_by_the_figures_that_were_published():
    assert slots_of("optane-pmem-100-512", 6).read_bytes_per_second == pytest.approx(39.4e9, rel=0.01)
    assert slots_of("optane-pmem-100-512", 6).write_bytes_per_second == pytest.approx(13.9e9, rel=0.01)
    assert LOG_DEVICES["pm9a3-7680"].sustained_write_bytes_per_second == pytest.approx(116e6, rel=0.01)
    assert LOG_DEVICES["pm9d3a-7680"].sustained_write_bytes_per_second == pytest.approx(89e6, rel=0.01)
    assert LOG_DEVICES["p5800x-1600"].sustained_write_bytes_per_second == pytest.approx(1852e6, rel=0.01)
    assert all(device.source for device in (*SLOT_DEVICES.values(), *LOG_DEVICES.values()))


def test_tiers_are_in_order_and_a_log_moves_rows():
    slots = [
        SlotTier(tier=t, device="x", capacity_bytes=1, read_bytes_per_second=1, write_bytes_per_second=1)
        for t in ("dram", "hbm")
    ]
    with pytest.raises(ValueError, match="in the order hbm > dram > scm"):
        Topology(name="x", slots=tuple(slots))
    with pytest.raises(ValueError, match="cannot be static"):
        topology_of_dict({**DICT, "static": True, "log": {"device": "pm9a3-7680"}})
