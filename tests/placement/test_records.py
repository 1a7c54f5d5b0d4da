import pytest

from mtrains.placement.records import directory_bytes, granule_bytes, log_bytes, record_bytes


@pytest.mark.parametrize(
    ("dim", "weight", "optimizer", "expected"),
    [
        (128, 2, "rowwise_adagrad", 260),
        (128, 4, "rowwise_adagrad", 516),
        (3, 2, "sgd", 8),  # weights are padded to 4 bytes
        (7, 4, "adagrad", 56),
        (16, 4, "sparse_adam", 192),
        (16, 4, "partial_rowwise_adam", 132),
    ],
)
def test_records(dim, weight, optimizer, expected):
    assert record_bytes(dim, weight, optimizer) == expected


@pytest.mark.parametrize(
    ("record", "expected"), [(260, 4096 / 15), (516, 4096 / 7), (4080, 4096), (4081, 8192), (8160, 8192)]
)
def test_a_rows_share_of_the_log(record, expected):
    assert log_bytes(record) == expected


@pytest.mark.parametrize(("record", "granule", "expected"), [(516, 256, 768), (260, 256, 512), (512, 256, 512)])
def test_granules(record, granule, expected):
    assert granule_bytes(record, granule) == expected


def test_a_directory_is_whole_chunks_of_512_rows():
    assert directory_bytes(0, 0) == directory_bytes(1000, 0) == 0
    assert directory_bytes(1, 1) == 4096
    assert directory_bytes(1024, 1024) == 8192
    assert directory_bytes(10**9, 10**9) == 8 * 10**9 // 4096 * 4096 + 4096 * (8 * 10**9 % 4096 > 0)
    few = directory_bytes(10**9, 1000)  # scattered rows: a chunk each
    assert few == pytest.approx(1000 * 4096, rel=1e-3)
