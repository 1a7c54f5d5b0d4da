"""Benchmarks of mtrains: `python -m bench`, or `make bench`. One question a file, answers checked, raw samples kept."""
