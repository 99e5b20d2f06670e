"""The published wire format for modules in other processes; `amplifier_module_pb2` needs protobuf, its neighbour grpcio."""
