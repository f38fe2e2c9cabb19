"""Alerts and actions: deliver what rules decide to people, engines and other services."""
