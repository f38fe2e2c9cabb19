"""The load client: worker processes that send requests at their intended times, and the run that observes them."""
