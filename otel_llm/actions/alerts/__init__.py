"""Alerts: one for each name and set of labels, told to Alertmanagers, webhooks, a log file, OTLP."""
