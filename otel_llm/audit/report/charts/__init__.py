"""The pictures of the report, as plotly figures in plain data."""
