"""The recorder's own parts, which no stack is named in."""
