"""The services of the published wire format for grpcio: for each a stub to call, a class to serve, and a function to add it."""

from __future__ import annotations

from typing import Any

import grpc  # type: ignore[import-not-found,import-untyped,unused-ignore]

from . import amplifier_module_pb2 as wire
from .amplifier_module_pb2 import PACKAGE, SERVICES


def _stub(service: str, calls: list[Any]) -> type:
    def __init__(self: Any, channel: Any) -> None:
        for name, request, response, is_streaming in calls:
            connect = channel.unary_stream if is_streaming else channel.unary_unary
            connected = connect(
                f"/{PACKAGE}.{service}/{name}",
                request_serializer=getattr(wire, request).SerializeToString,
                response_deserializer=getattr(wire, response).FromString,
            )
            setattr(self, name, connected)

    doc = f"Calls a {service} at the other end of a channel."
    return type(f"{service}Stub", (), {"__init__": __init__, "__doc__": doc, "__module__": __name__})


def _servicer(service: str, calls: list[Any]) -> type:
    def unimplemented(self: Any, request: Any, context: Any) -> Any:
        context.set_code(grpc.StatusCode.UNIMPLEMENTED)
        context.set_details("Method not implemented!")
        raise NotImplementedError("Method not implemented!")

    members = {name: unimplemented for name, *_ in calls}
    doc = f"Serves as a {service}; inherit and write the calls."
    return type(f"{service}Servicer", (), {**members, "__doc__": doc, "__module__": __name__})


def _adder(service: str, calls: list[Any]) -> Any:
    def add(servicer: Any, server: Any) -> None:
        handlers = {}
        for name, request, response, is_streaming in calls:
            handle = grpc.unary_stream_rpc_method_handler if is_streaming else grpc.unary_unary_rpc_method_handler
            handlers[name] = handle(
                getattr(servicer, name),
                request_deserializer=getattr(wire, request).FromString,
                response_serializer=getattr(wire, response).SerializeToString,
            )
        name = f"{PACKAGE}.{service}"
        server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler(name, handlers),))
        if hasattr(server, "add_registered_method_handlers"):
            server.add_registered_method_handlers(name, handlers)

    add.__name__ = f"add_{service}Servicer_to_server"
    return add


for _service, _calls in SERVICES.items():
    globals()[f"{_service}Stub"] = _stub(_service, _calls)
    globals()[f"{_service}Servicer"] = _servicer(_service, _calls)
    globals()[f"add_{_service}Servicer_to_server"] = _adder(_service, _calls)


def __getattr__(name: str) -> Any:
    # For the type checker: which names there are is known when the table has been read.
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
