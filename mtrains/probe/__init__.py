"""What this machine can do, measured: the figures of a topology."""
