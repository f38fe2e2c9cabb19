"""The output of commands: the console, progress, live views, standard output."""
