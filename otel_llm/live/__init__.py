"""What a web port shows: the live page, and what readers felt as metrics."""
