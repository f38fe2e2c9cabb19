"""The charts of the report, as plotly figures in plain data."""
