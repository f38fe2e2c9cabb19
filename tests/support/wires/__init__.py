"""One fake server of the wires of model APIs: faithful bytes, one token in each chunk."""
