"""Real servers in processes of their own that stream a model's reply on, and clients that time what they get."""
