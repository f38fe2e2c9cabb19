"""What rules decide is made known, and done, here: alerts and actions."""
