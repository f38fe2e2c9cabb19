"""The replicas: their state and load, their health, and the requests to them."""
