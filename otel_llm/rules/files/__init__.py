"""Rule files and SLO files: strict YAML, schema, and the rules made of them."""
