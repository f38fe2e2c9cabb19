"""What every HTTP port of ours has: an address, certificates, tokens, and the check of who asks."""
