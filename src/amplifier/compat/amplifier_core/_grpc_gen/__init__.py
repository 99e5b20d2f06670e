"""The published wire format, which the foundation library's gRPC adapter imports; needs protobuf and grpcio."""
