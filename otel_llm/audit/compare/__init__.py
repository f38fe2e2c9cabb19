"""Compare recordings: differences, gates, tiers, groups, sweeps."""
