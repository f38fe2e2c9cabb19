"""Where findings go and decided actions are done: the sinks of a service, what an action has to know, its console."""
