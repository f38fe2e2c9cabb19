"""The journal: the file format's writer and reader, retention, compaction, checkpoints."""
