"""Lints of rule files, and the check that reports them."""
