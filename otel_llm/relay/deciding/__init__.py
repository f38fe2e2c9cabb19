"""What rules decide on the streams of the relay, who carries it out, and the records of it."""
