"""The compute of the HBM tier: torch operations on a slot tensor on any device, with the native core's bits.

Pure functions; index tensors are int64 and on the device of the records. tests/tiers/test_hbm_kernels.py is the
proof that they equal native/include/mtrains/kernels.h, on the CPU. Where an operation has two NaN operands,
which of them is the result is not defined, here as there.
"""

from mtrains.tiers.hbm_pool import per_sample_weight_grad, pool
from mtrains.tiers.hbm_records import RecordLayout, gather_records, load_rows, scatter_records
from mtrains.tiers.hbm_sums import divide_by_counts, sum_rows
from mtrains.tiers.hbm_update import Decay, Optimizer, update_rows

__all__ = [
    "Decay",
    "Optimizer",
    "RecordLayout",
    "divide_by_counts",
    "gather_records",
    "load_rows",
    "per_sample_weight_grad",
    "pool",
    "scatter_records",
    "sum_rows",
    "update_rows",
]
