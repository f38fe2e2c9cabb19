"""Durable delivery of messages to notification channels: queued over restarts, signed, dead-lettered."""
