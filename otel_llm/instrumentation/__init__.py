"""In the application: the recorder, and one file for each stack that it hooks."""
