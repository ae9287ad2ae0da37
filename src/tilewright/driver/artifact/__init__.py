"""The steps of an artifact: native entries, fallbacks and control flow of a partitioned program, with their weights."""
