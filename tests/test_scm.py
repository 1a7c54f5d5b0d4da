import dataclasses
import math
import subprocess
import sys

import pytest

import mtrains
from mtrains.devices import DEVICES, EmulatedDevice
from mtrains.scm import Scm


def device(**changed):
    given = {"name": "mine", "read_bytes_per_second": 1e9, "write_bytes_per_second": 5e8}
    return EmulatedDevice(**(given | changed))


def test_a_size_alone_takes_the_default_provider():
    scm = mtrains.Scm("64MiB")
    assert scm.capacity_bytes == 64 << 20
    assert (scm.provider, scm.effective_provider, scm.folder, scm.device) == ("auto", "lmdb", None, None)
    assert Scm(5000, numa_node=0).effective_provider == "anonymous"
    assert Scm(5000, provider="file").effective_provider == "file"
    with pytest.raises(dataclasses.FrozenInstanceError):
        scm.capacity = 1
    with pytest.raises(TypeError):
        Scm("64MiB", "lmdb")


def test_a_device_is_emulated_by_name_or_by_figures():
    assert Scm("1GiB", emulate="optane-pmem-100").device is DEVICES["optane-pmem-100"]
    mine = device(granule_bytes=512)
    assert Scm("1GiB", emulate=mine).device is mine


@pytest.mark.parametrize(
    ("given", "error", "text"),
    [
        ({"capacity": 0}, ValueError, "at least 4096 bytes, got 0"),
        ({"capacity": "600"}, ValueError, "at least 4096 bytes, got '600'"),
        ({"capacity": "much"}, ValueError, "not a size"),
        ({"capacity": 1.5}, TypeError, "a size is an int or a str"),
        ({"provider": "nvme"}, ValueError, "one of 'auto', 'lmdb', 'file', 'anonymous', got 'nvme'"),
        ({"path": 3}, TypeError, "path must be a str or a path, got int"),
        ({"provider": "anonymous", "path": "/dev/shm"}, ValueError, "anonymous memory has no path"),
        ({"numa_node": 0, "path": "/dev/shm"}, ValueError, "anonymous memory has no path"),
        ({"numa_node": -1}, ValueError, "numa_node must be >= 0, got -1"),
        ({"numa_node": True}, TypeError, "numa_node must be an int, got bool"),
        ({"numa_node": 0, "provider": "lmdb"}, ValueError, "for provider='anonymous', got provider='lmdb'"),
        ({"emulate": "floppy"}, ValueError, "emulate must be one of 'optane-pmem-100', .*got 'floppy'"),
        ({"emulate": 3}, TypeError, "a str or an EmulatedDevice, got int"),
    ],
)
def test_what_cannot_be_is_refused(given, error, text):
    with pytest.raises(error, match=text):
        Scm(**({"capacity": "1MiB"} | given))


@pytest.mark.parametrize(
    ("changed", "error", "text"),
    [
        ({"name": ""}, ValueError, "needs a name"),
        ({"read_bytes_per_second": 0}, ValueError, "read_bytes_per_second must be finite and > 0, got 0"),
        ({"write_bytes_per_second": math.inf}, ValueError, "write_bytes_per_second must be finite"),
        ({"read_latency_seconds": -1e-9}, ValueError, "read_latency_seconds must be finite and >= 0"),
        ({"write_latency_seconds": "1us"}, TypeError, "write_latency_seconds must be a number, got str"),
        ({"granule_bytes": 0}, ValueError, r"granule_bytes must be an int in \[1, 2\*\*20\], got 0"),
    ],
)
def test_impossible_devices_are_refused(changed, error, text):
    with pytest.raises(error, match=text):
        device(**changed)


def test_every_known_device_names_its_source():
    for name, known in DEVICES.items():
        assert known.name == name
        assert known.source
        assert known.read_bytes_per_second >= known.write_bytes_per_second


def test_importing_it_does_not_import_torch():
    code = "import sys, mtrains; mtrains.Scm('1MiB'); sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
