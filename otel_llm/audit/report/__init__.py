"""The HTML report: one page with all results of an audit."""
