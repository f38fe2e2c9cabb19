"""Load and capacity from outside."""
