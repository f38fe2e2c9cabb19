"""What a run leaves behind: a journal, and the settings to run it again."""
