"""Alerts: one for each name and set of labels, sent to Alertmanagers, webhooks, a log file and OTLP."""
