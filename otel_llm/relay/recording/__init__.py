"""Each owned request as our own recorder tells of it, to its segments and to the rules."""
