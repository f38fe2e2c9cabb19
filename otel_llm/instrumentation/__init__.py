"""The application's side: the recorder, and one module for each stack that it hooks."""
