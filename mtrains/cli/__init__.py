"""The command line. Commands import what they run when they run: `mtrains --help` needs no torch."""

from mtrains.cli.app import main

__all__ = ["main"]
