"""Settings and other YAML files: read with source positions, checked by models; the sections of every service."""
