"""What is known of a request around its tokens: its commit, trace, reader, server, GPUs."""
