"""The contents of a web port: the live page, and metrics of what readers felt."""
