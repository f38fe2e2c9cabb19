"""The stream-owning reverse proxy: it measures, evaluates and moves the streams that it serves."""
