"""How one attempt reaches an endpoint: over HTTP or gRPC, each within one deadline."""
