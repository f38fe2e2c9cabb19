"""The rule engine: states, budgets and decisions of stream and scope rules."""
