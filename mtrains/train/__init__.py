"""What `mtrains train` and `mtrains demo` run: readers of click logs, DLRM, the training loop.

Read in this order: config, data/stream, dlrm, tables, loop, checkpoint.
"""
