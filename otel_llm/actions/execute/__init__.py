"""Actions: build signed requests for them, dispatch each once and in time, see it done; the receiving end too."""
