"""What the collector says about itself."""
