"""The parts of one OTLP span, checked: ids and times, attributes, token events."""
