"""What commands, the audit, the collector and its actions share: the clock, files, secrets, and sending to others."""
