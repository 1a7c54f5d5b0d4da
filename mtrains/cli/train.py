"""`mtrains train`."""

from __future__ import annotations

from typing import Annotated, Literal

import typer

from mtrains.cli.usage import usage_errors

__all__ = ["train"]


def train(
    data: Annotated[
        list[str],
        typer.Option(help="A file, plain, gzip, xz or bzip2; again for more, read in order; - is stdin."),
    ],
    format: Annotated[
        Literal["auto", "criteo", "tsv", "csv", "parquet"],
        typer.Option(help="auto looks at the first bytes; tsv and csv have a header line."),
    ] = "auto",
    label: Annotated[str | None, typer.Option(help="Column of the label, 0 or 1.")] = None,
    dense: Annotated[str | None, typer.Option(help="Columns of numbers: a,b,c.", metavar="COLUMNS")] = None,
    categorical: Annotated[
        str | None, typer.Option(help="Columns of categories: a,b,c.", metavar="COLUMNS")
    ] = None,
    bag: Annotated[
        list[str] | None,
        typer.Option(
            help="A column that holds any number of categories: tags:^.", metavar="COLUMN:SEPARATOR"
        ),
    ] = None,
    schema: Annotated[
        str | None, typer.Option(help="The columns in a TOML or JSON file instead.", metavar="FILE")
    ] = None,
    dense_transform: Annotated[
        Literal["log1p", "none"] | None,
        typer.Option(help="log1p (default): log(1 + max(x, 0)); a missing number is 0 either way."),
    ] = None,
    rows: Annotated[int, typer.Option(help="Rows of each table; categories are hashed to them.")] = 100_000,
    table_rows: Annotated[
        list[str] | None, typer.Option(help="Rows of one table; may be given again.", metavar="NAME=N")
    ] = None,
    on_bad_line: Annotated[
        Literal["error", "skip"], typer.Option(help="Stop at a malformed line, or leave it out and count it.")
    ] = "error",
    eval_data: Annotated[
        list[str] | None, typer.Option(help="A file to evaluate on after training; may be given again.")
    ] = None,
    holdout: Annotated[
        float | None,
        typer.Option(help="Evaluate on the last fraction of the records instead; one more pass counts them."),
    ] = None,
    holdout_samples: Annotated[
        int | None, typer.Option(help="Evaluate on the last N records instead.", metavar="N")
    ] = None,
    preset: Annotated[
        Literal["kaggle", "terabyte", "mlperf", "small"],
        typer.Option(help="Published DLRM: dimensions, MLPs, batch size and SGD's learning rate."),
    ] = "kaggle",
    embedding_dim: Annotated[int | None, typer.Option(help="Columns of each table.")] = None,
    bottom_mlp: Annotated[
        str | None, typer.Option(help="Hidden widths before embedding_dim: 512,256.", metavar="WIDTHS")
    ] = None,
    top_mlp: Annotated[
        str | None, typer.Option(help="Hidden widths before the logit: 512,256.", metavar="WIDTHS")
    ] = None,
    optimizer: Annotated[
        Literal["sgd", "adagrad", "rowwise_adagrad", "sparse_adam", "partial_rowwise_adam"],
        typer.Option(help="Of tables; the MLPs get its ordinary counterpart."),
    ] = "sgd",
    lr: Annotated[float | None, typer.Option(help="Learning rate; default by optimizer and preset.")] = None,
    batch_size: Annotated[int | None, typer.Option(help="Samples a step; default by preset.")] = None,
    epochs: Annotated[int, typer.Option(help="Passes over the data.")] = 1,
    max_steps: Annotated[int | None, typer.Option(help="Stop after this many steps in all.")] = None,
    seed: Annotated[int, typer.Option(help="Of initial weights and rows.")] = 0,
    deterministic: Annotated[
        bool,
        typer.Option("--deterministic", help="Same bits on every run: torch's deterministic algorithms."),
    ] = False,
    store: Annotated[
        str | None,
        typer.Option(help="Folder of the rows; without it a temporary one is used.", metavar="FOLDER"),
    ] = None,
    dram: Annotated[
        str | None, typer.Option(help="Memory for rows, such as 2GiB; 256MiB by default.", metavar="SIZE")
    ] = None,
    hbm: Annotated[
        str,
        typer.Option(help="Memory of the GPU for rows, which compute there; emulated without one.", metavar="SIZE"),
    ] = "0",
    scm: Annotated[
        str, typer.Option(help="Byte-addressable memory below DRAM, for rows.", metavar="SIZE")
    ] = "0",
    scm_emulate: Annotated[
        str | None,
        typer.Option(help="Make it as slow as a device of mtrains.devices: optane-pmem-100, ...", metavar="NAME"),
    ] = None,
    plan: Annotated[
        str | None,
        typer.Option(help="Each table's memory, as `mtrains plan -o FILE` wrote it.", metavar="FILE"),
    ] = None,
    ssd: Annotated[
        str | None, typer.Option(help="Hard limit of the store's disk space.", metavar="SIZE")
    ] = None,
    io_engine: Annotated[
        Literal["auto", "uring", "pread", "mmap"], typer.Option(help="How rows are read from disk.")
    ] = "auto",
    checkpoint_every: Annotated[
        int | None, typer.Option(help="Commit a checkpoint after every N steps.", metavar="N")
    ] = None,
    resume: Annotated[
        bool,
        typer.Option(
            "--resume", help="Continue from the store's last checkpoint; the data is read again up to there."
        ),
    ] = False,
    threads: Annotated[int | None, typer.Option(help="Threads of the table kernels.")] = None,
    dense_threads: Annotated[
        int | None, typer.Option(help="Threads of torch; 1 under --deterministic.")
    ] = None,
    workers: Annotated[int, typer.Option(help="Processes that parse the data; 0 parses in this one.")] = 0,
    lookahead: Annotated[
        int, typer.Option(help="Batches of ids known ahead: rows needed last leave first.", metavar="N")
    ] = 64,
    depth: Annotated[
        int, typer.Option(help="Batches whose rows are brought ahead, while others train.", metavar="N")
    ] = 2,
    json: Annotated[bool, typer.Option("--json", help="Print the result as one JSON object.")] = False,
) -> None:
    """Train a DLRM on click logs, with its embedding tables in a store."""
    # Imported here, since torch takes seconds to load and `mtrains --help` has no use for it.
    from mtrains.cli import options
    from mtrains.cli.progress import ProgressBar
    from mtrains.cli.render import print_json
    from mtrains.cli.render_training import print_training
    from mtrains.train.config import PRESETS, TrainConfig
    from mtrains.train.data.stream import detect_format
    from mtrains.train.run import train as run_training

    with usage_errors():
        shape = options.choose_shape(
            preset, embedding_dim=embedding_dim, bottom_mlp=bottom_mlp, top_mlp=top_mlp
        )
    format_name = detect_format(data[0]) if format == "auto" else format
    with usage_errors():
        columns = options.choose_schema(
            format_name,
            schema_file=schema,
            label=label,
            dense=dense,
            categorical=categorical,
            bags=bag or (),
            dense_transform=dense_transform,
        )
        config = TrainConfig(
            data=tuple(data),
            format=format_name,
            schema=columns,
            table_rows=options.choose_table_rows(columns.features, rows, table_rows or ()),
            shape=shape,
            optimizer=optimizer,
            lr=options.choose_lr(preset, optimizer) if lr is None else lr,
            batch_size=PRESETS[preset].batch_size if batch_size is None else batch_size,
            epochs=epochs,
            eval_data=tuple(eval_data or ()),
            holdout=holdout,
            holdout_samples=holdout_samples,
            on_bad_line=on_bad_line,
            seed=seed,
            max_steps=max_steps,
            deterministic=deterministic,
            store=store,
            dram=dram,
            hbm=hbm,
            scm=scm,
            scm_emulate=scm_emulate,
            plan=plan,
            ssd=ssd,
            io_engine=io_engine,
            checkpoint_every=checkpoint_every,
            resume=resume,
            threads=threads,
            dense_threads=dense_threads,
            workers=workers,
            lookahead=lookahead,
            depth=depth,
        )
    with ProgressBar() as progress:
        result = run_training(config, progress)
    if json:
        print_json(result.to_json())
    else:
        print_training(result)
