"""Capacity from outside: the highest request rate at which an objective holds, as an interval with a confidence."""
