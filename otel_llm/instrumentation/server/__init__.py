"""What the recorder does inside of a serving process: the replies that leave it, and how it stops."""
