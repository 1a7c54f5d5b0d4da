"""The storage tiers: the log in LMDB, the catalog, checkpoints and garbage collection."""
