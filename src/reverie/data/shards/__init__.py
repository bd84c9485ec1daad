"""Images in shards: tar, parquet and arrow files, local or remote, with random access by an index."""
