"""The demo: paced servers, a chat application, readers, and their processes."""
