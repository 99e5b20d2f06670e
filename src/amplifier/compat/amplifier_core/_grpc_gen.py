"""Refuses the import by the foundation library's gRPC adapter."""

raise ImportError(
    "the amplifier_core alias has no gRPC; offer the module as an MCP server, or use the published "
    "kernel for it",
    name=__name__,
)
