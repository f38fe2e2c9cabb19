"""The demo: paced servers, a chat application, readers, and the processes that they run in."""
