"""The table of nodes for 12e12 parameters (docs/placement.md), from its inputs."""

import dataclasses

import pytest

from mtrains.placement.nodes import NODE_SEGMENTS, count_nodes, nodes_of_servers
from mtrains.placement.presets import SERVERS
from mtrains.placement.workload import Workload
from mtrains.profiler.models import MODELS, model_profile

KINDS = [
    "hbm+dram",
    "+pmem-12x256",
    "+pmem-12x512",
    "+pmem-24x512",
    "+cxl-8x512",
    "+8xp5800x",
    "+8xpm9a3",
    "+pmem-12x256+8xpm9a3",
]


def ask(model, dtype, **changes):
    shape = dataclasses.replace(MODELS[model], dtype=dtype)
    network = shape.network_values_per_sample * (2 if dtype == "float16" else 4)
    workload = Workload(
        checkpoint_seconds=4 * 3600, max_segments=NODE_SEGMENTS, network_bytes_per_sample=network, **changes
    )
    return model_profile(shape), workload


@pytest.mark.parametrize(
    ("model", "dtype", "rate", "expected"),
    [
        ("12t-dcnv2", "float16", 2e5, [15, 6, 4, 2, 5, 2, 2, 2]),
        ("12t-meta", "float16", 2e5, [15, 6, 4, 2, 5, 6, 11, 5]),
        ("12t-meta", "float16", 1e6, [15, 10, 10, 10, 10, 11, 15, 10]),
        ("12t-dcnv2", "float32", 2e5, [30, 11, 7, 4, 9, 4, 2, 2]),
        ("12t-meta", "float32", 2e5, [30, 11, 7, 4, 9, 7, 21, 10]),
        ("12t-meta", "float16", 1.6e6, [16] * 8),
    ],
)
def test_the_nodes_that_12e12_parameters_need(model, dtype, rate, expected):
    profile, workload = ask(model, dtype)
    assert [count_nodes(profile, SERVERS[kind], workload, rate).nodes for kind in KINDS] == expected


def test_what_is_short_with_one_node_less_and_where_the_ratio_ends():
    profile, workload = ask("12t-meta", "float16")
    counts = {one.server: one for one in nodes_of_servers(profile, [SERVERS[kind] for kind in KINDS], workload, 2e5)}
    assert counts["hbm+dram"].first_limit == counts["+pmem-12x256"].first_limit == "capacity"
    assert "log IOPS" in counts["+8xp5800x"].first_limit
    assert "log endurance" in counts["+8xpm9a3"].first_limit
    assert counts["+pmem-24x512"].ratio == 7.5
    assert counts["hbm+dram"].even_rate is None
    assert counts["+pmem-24x512"].even_rate == pytest.approx(14 * 106_250, rel=1e-6)  # compute of one node less
    assert counts["+8xpm9a3"].even_rate < 1e6  # endurance ends the advantage earlier
    assert counts["+pmem-12x512"].device_watts == 4 * (8 * 400 + 12 * 18)


def test_better_layout_in_the_log_needs_fewer_nodes():
    profile, workload = ask("12t-meta", "float16", pages_per_fetch=0.3)
    assert count_nodes(profile, SERVERS["+8xp5800x"], workload, 2e5).nodes == 3


def test_a_rate_that_no_number_of_nodes_reaches_has_no_answer():
    profile, workload = ask("12t-dcnv2", "float16")
    count = count_nodes(profile, SERVERS["hbm+dram"], workload, 1e12)
    assert count.nodes is None
    assert count.first_limit.startswith("compute, network")


def test_models_have_their_published_sizes():
    for name, gib, tables in (
        ("tiny", 4.2, 55),
        ("small", 26.3, 107),
        ("medium", 206.2, 311),
        ("large", 773.8, 612),
        ("jumbo", 3109.5, 1022),
        ("colossal", 22327.4, 2002),
    ):
        groups = MODELS[name].groups
        size = sum(group.count * group.num_embeddings * group.embedding_dim * 4 for group in groups)
        assert size / 2**30 == pytest.approx(gib, abs=0.06), name
        assert sum(group.count for group in groups) == tables
    assert MODELS["12t-meta"].num_rows * 128 == 12 * 10**12
    assert MODELS["12t-dcnv2"].lookups_per_sample == 214
