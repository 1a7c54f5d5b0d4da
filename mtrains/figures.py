"""What all pictures share: colours, and how they become files."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from pathlib import Path

from matplotlib.figure import Figure

__all__ = ["COLOURS", "save_figures"]

# Okabe and Ito's: told apart by colour-blind people too; the last is one more.
COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#000000", "#8C6D31")


def save_figures(
    figures: Mapping[str, Figure], folder: str | os.PathLike[str], *, formats: Sequence[str] = ("png", "svg")
) -> list[Path]:
    """Write pictures into a folder, which is made, as NAME.png and NAME.svg; return the files. Raises: OSError."""
    Path(folder).mkdir(parents=True, exist_ok=True)
    files = [Path(folder) / f"{name}.{suffix}" for name in figures for suffix in formats]
    for file in files:
        # Without a date in them, equal pictures are equal files.
        figures[file.stem].savefig(file, dpi=150, metadata={"Date": None} if file.suffix == ".svg" else {})
    return files
