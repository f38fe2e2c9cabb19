"""Rule files and SLO classes: schema, language, state machine, engine."""
