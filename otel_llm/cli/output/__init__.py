"""How commands write: the console, progress, live views, standard output."""
