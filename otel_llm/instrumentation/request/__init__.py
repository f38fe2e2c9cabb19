"""What is known of a request at its commit, and what travels in its headers."""
