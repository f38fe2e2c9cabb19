"""The journal: the file format's writer, its records, retention, compaction, checkpoints."""
