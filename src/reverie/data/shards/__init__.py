"""Images in shards: tar, parquet and arrow files, here or on object storage, of which any image is read by its number."""
