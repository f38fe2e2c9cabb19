"""What the recorder does inside of a serving process."""
