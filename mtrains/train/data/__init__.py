"""Click logs as streams of samples: files, formats, ids and batches. Nothing here knows a model or a store.

Read in this order: schema (what a column is), source (bytes and lines), delimited and parquet (records
of one file), convert (columns of text to arrays), stream (several files, ranges, batches of one size).
"""
