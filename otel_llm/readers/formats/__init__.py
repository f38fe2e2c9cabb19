"""The forms of recordings: each a module that tells and reads it, and the table of all."""
