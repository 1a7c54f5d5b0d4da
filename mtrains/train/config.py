"""What a training run is: the model's shape, the data, the machine's budgets; one frozen dataclass each."""

from __future__ import annotations

import math
import os
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any

from mtrains.prefetch.loader import MAX_DEPTH
from mtrains.scm import MIN_SCM_BYTES, Scm
from mtrains.store_memory import DEFAULT_DRAM
from mtrains.threads import MAX_NUM_THREADS
from mtrains.train.data.schema import Schema
from mtrains.train.data.source import STDIN
from mtrains.train.data.stream import FORMATS, ON_BAD_LINE
from mtrains.units import parse_bytes

__all__ = ["DEFAULT_LR", "OPTIMIZERS", "PRESETS", "ModelShape", "TrainConfig"]

OPTIMIZERS = ("sgd", "adagrad", "rowwise_adagrad", "sparse_adam", "partial_rowwise_adam")
# torch.optim's defaults but for sgd, whose lr comes with the preset of the model.
DEFAULT_LR = {"adagrad": 0.01, "rowwise_adagrad": 0.01, "sparse_adam": 0.001, "partial_rowwise_adam": 0.001}


@dataclass(frozen=True, kw_only=True)
class ModelShape:
    """A DLRM. bottom_mlp: hidden widths before embedding_dim; top_mlp: hidden widths before the logit."""

    embedding_dim: int
    bottom_mlp: tuple[int, ...]
    top_mlp: tuple[int, ...]

    def __post_init__(self) -> None:
        if self.embedding_dim < 1:
            raise ValueError(f"embedding_dim must be >= 1, got {self.embedding_dim}")
        for name in ("bottom_mlp", "top_mlp"):
            if any(width < 1 for width in getattr(self, name)):
                raise ValueError(f"every width of {name} must be >= 1, got {getattr(self, name)}")


@dataclass(frozen=True, kw_only=True)
class Preset:
    """A published model with its learning rate (SGD) and batch size."""

    shape: ModelShape
    lr: float
    batch_size: int


# Fields that may differ between a run and its resumption; the last three are compared in another form.
_FREE = {"store", "dram", "hbm", "scm", "scm_emulate", "plan", "ssd", "io_engine", "checkpoint_every", "resume"}
_FREE |= {"threads", "dense_threads", "lookahead", "depth"}
_FREE |= {"workers", "epochs", "max_steps", "data", "eval_data", "schema"}

# Source: facebookresearch/dlrm, bench/*.sh: dlrm_s_criteo_kaggle, dlrm_s_criteo_terabyte, the MLPerf v1
# options of the latter, and dlrm_s_benchmark, which names no learning rate (0.1 here).
PRESETS: Mapping[str, Preset] = {
    "kaggle": Preset(
        shape=ModelShape(embedding_dim=16, bottom_mlp=(512, 256, 64), top_mlp=(512, 256)),
        lr=0.1,
        batch_size=128,
    ),
    "terabyte": Preset(
        shape=ModelShape(embedding_dim=64, bottom_mlp=(512, 256), top_mlp=(512, 512, 256)),
        lr=0.1,
        batch_size=2048,
    ),
    "mlperf": Preset(
        shape=ModelShape(embedding_dim=128, bottom_mlp=(512, 256), top_mlp=(1024, 1024, 512, 256)),
        lr=1.0,
        batch_size=2048,
    ),
    "small": Preset(
        shape=ModelShape(embedding_dim=64, bottom_mlp=(512, 512), top_mlp=(1024, 1024, 1024)),
        lr=0.1,
        batch_size=2048,
    ),
}


@dataclass(frozen=True, kw_only=True)
class TrainConfig:
    """Everything a run depends on. Raises ValueError where options contradict each other.

    data, eval_data: files in order, "-" is standard input. format: not "auto" (see `detect_format`).
    table_rows: num_embeddings of the table of each categorical column, in the schema's order.
    holdout: the last fraction of the records, by one counting pass; holdout_samples: the last N records.
    dram, hbm, scm, ssd: sizes; 0 is no such tier, dram None 256 MiB, ssd None no limit. scm_emulate: name of a device
    of mtrains.devices that the scm tier shall be as slow as. plan: file of a PlacementPlan, in place of the sizes.
    store: folder, or None for a private temporary one. lookahead, depth: batches whose ids are known and whose rows
    are brought ahead, as `mtrains.prefetch`; 0 and 0 do without.
    """

    data: tuple[str, ...]
    format: str
    schema: Schema
    table_rows: tuple[int, ...]
    shape: ModelShape
    optimizer: str = "sgd"
    lr: float = 0.1
    batch_size: int = 128
    epochs: int = 1
    eval_data: tuple[str, ...] = ()
    holdout: float | None = None
    holdout_samples: int | None = None
    on_bad_line: str = "error"
    seed: int = 0
    max_steps: int | None = None
    deterministic: bool = False

    store: str | None = None
    dram: int | str | None = None
    hbm: int | str = 0
    scm: int | str = 0
    scm_emulate: str | None = None
    plan: str | None = None
    ssd: int | str | None = None
    io_engine: str = "auto"
    checkpoint_every: int | None = None
    resume: bool = False
    threads: int | None = None
    dense_threads: int | None = None
    workers: int = 0
    lookahead: int = 64
    depth: int = 2

    def __post_init__(self) -> None:
        self._check_data()
        self._check_numbers()
        if self.optimizer not in OPTIMIZERS:
            raise ValueError(
                f"unknown optimizer {self.optimizer!r}; the optimizers are {', '.join(OPTIMIZERS)}"
            )
        self._check_tiers()
        if self.ssd is not None:
            parse_bytes(self.ssd)
        if self.store is None:
            if self.resume:
                raise ValueError("--resume needs --store: it continues what a store holds")
            if self.checkpoint_every is not None:
                raise ValueError("--checkpoint-every needs --store: a temporary store is gone after the run")

    def _check_tiers(self) -> None:
        sizes = {
            "dram": parse_bytes(DEFAULT_DRAM if self.dram is None else self.dram),
            "hbm": parse_bytes(self.hbm),
            "scm": parse_bytes(self.scm),
        }
        if self.plan is not None:
            given = {**sizes, "dram": self.dram is not None}
            for name in (name for name in given if given[name]):
                raise ValueError(f"--plan says what each table has in each tier, so --{name} contradicts it")
            self.scm_tier(MIN_SCM_BYTES)
            return
        if not any(sizes.values()):
            raise ValueError("rows need memory: give --dram, --hbm or --scm some bytes")
        if self.scm_emulate is not None and not sizes["scm"]:
            raise ValueError("--scm-emulate needs --scm: it says how slow that tier shall be")
        self.scm_tier(sizes["scm"])

    def scm_tier(self, capacity_bytes: int) -> Scm | None:
        """Return a scm tier of this size, None if it is 0. Raises: ValueError."""
        return Scm(capacity_bytes, emulate=self.scm_emulate) if capacity_bytes else None

    def _check_data(self) -> None:
        if not self.data:
            raise ValueError("no data: name files with --data, or - for standard input")
        if self.format not in FORMATS[1:]:
            raise ValueError(f"unknown format {self.format!r}; the formats are {', '.join(FORMATS)}")
        if self.on_bad_line not in ON_BAD_LINE:
            raise ValueError(f"--on-bad-line is error or skip, got {self.on_bad_line!r}")
        if (self.data + self.eval_data).count(STDIN) > 1:
            raise ValueError("standard input can be read once: give - once among --data and --eval-data")
        if len(self.table_rows) != len(self.schema.features):
            raise ValueError(
                f"{len(self.table_rows)} table sizes for {len(self.schema.features)} categorical columns"
            )
        holdouts = [self.holdout is not None, self.holdout_samples is not None, bool(self.eval_data)]
        if sum(holdouts) > 1:
            raise ValueError("choose one of --holdout, --holdout-samples and --eval-data")
        if STDIN in self.data:
            if self.holdout is not None or self.holdout_samples is not None:
                raise ValueError("a holdout of standard input would need a second pass; use --eval-data FILE")
            if self.epochs > 1:
                raise ValueError("standard input can be read once: use --epochs 1 or name files")
            if self.format == "parquet":
                raise ValueError("Parquet cannot be read from standard input; name files")
            if self.workers:
                raise ValueError("standard input cannot be shared by workers; use --workers 0 or name files")

    def _check_numbers(self) -> None:
        least = {"batch_size": 1, "epochs": 1, "workers": 0, "seed": 0, "holdout_samples": 1}
        least |= {"max_steps": 1, "checkpoint_every": 1, "threads": 1, "dense_threads": 1}
        least |= {"lookahead": 0, "depth": 0}
        for name, low in least.items():
            value = getattr(self, name)
            if value is not None and value < low:
                raise ValueError(f"--{name.replace('_', '-')} must be >= {low}, got {value}")
        if self.seed >= 1 << 63:
            raise ValueError(f"--seed must be < 2**63, got {self.seed}")
        if self.depth > MAX_DEPTH:
            raise ValueError(f"--depth must be <= {MAX_DEPTH}, got {self.depth}")
        for name in ("threads", "dense_threads", "workers"):
            value = getattr(self, name)
            if value is not None and value > MAX_NUM_THREADS:
                raise ValueError(f"--{name.replace('_', '-')} must be <= {MAX_NUM_THREADS}, got {value}")
        if self.holdout is not None and not 0 < self.holdout < 1:
            raise ValueError(f"--holdout is a fraction between 0 and 1, got {self.holdout}")
        if not (math.isfinite(self.lr) and self.lr > 0):
            raise ValueError(f"--lr must be a positive number, got {self.lr}")
        for feature, rows in zip(self.schema.features, self.table_rows, strict=True):
            if rows < 1:
                raise ValueError(f"table {feature.name!r} needs at least 1 row, got {rows}")

    def fingerprint(self) -> dict[str, Any]:
        """Return what decides the bits of the result, as JSON values: a resumed run must have the same.

        Files count by name without folder and by size.
        """
        same = {name: value for name, value in asdict(self).items() if name not in _FREE}
        same["data"] = [_file_identity(path) for path in self.data]
        same["eval_data"] = [_file_identity(path) for path in self.eval_data]
        same["columns"] = asdict(self.schema)
        return same


def _file_identity(path: str) -> str:
    if path == STDIN:
        return path
    try:
        return f"{os.path.basename(path)} ({os.path.getsize(path)} bytes)"
    except OSError:
        return os.path.basename(path)
