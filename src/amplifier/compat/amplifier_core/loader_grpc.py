"""Tools behind gRPC, as published modules import it.

A tool that another process serves (``ToolService`` of the published wire format) is mounted like any other. grpcio and protobuf
are needed for the connection only; without them the import of this file still works.
"""

from __future__ import annotations

import base64
import json
import logging
from typing import Any

from ._grpc_gen._chat import plain_block
from .models import ToolResult

__all__ = ["GrpcToolBridge", "load_grpc_module"]

logger: logging.Logger = logging.getLogger(__name__)

_BAD_CONTENT = "invalid tool result content"


def _extract_endpoint(meta: dict[str, Any], module_id: str) -> str:
    """The address in a module's ``amplifier.toml``, or the usual one."""
    endpoint: str = meta.get("grpc", {}).get("endpoint", "localhost:50051")
    logger.debug("module '%s' is at %s", module_id, endpoint)
    return endpoint


class GrpcToolBridge:
    """A tool whose work another process does.

    Args:
        name: From the other side's specification.
        description: The same.
        parameters_json: Its input schema as JSON text.
        endpoint: Where it is.
        channel: The open connection; closed by `cleanup`.
    """

    def __init__(
        self, name: str, description: str, parameters_json: str, endpoint: str, channel: Any | None = None
    ) -> None:
        self._name = name
        self._description = description
        self._parameters_json = parameters_json
        self._endpoint = endpoint
        self._channel = channel
        self._stub: Any = None

    @property
    def name(self) -> str:
        """The tool's name."""
        return self._name

    @property
    def description(self) -> str:
        """What it does."""
        return self._description

    @property
    def input_schema(self) -> dict[str, Any]:
        """What it takes."""
        schema: dict[str, Any] = json.loads(self._parameters_json) if self._parameters_json else {}
        return schema

    def get_spec(self) -> dict[str, Any]:
        """Name, description and parameters."""
        return {"name": self._name, "description": self._description, "parameters": self.input_schema}

    async def execute(self, **kwargs: Any) -> dict[str, Any]:
        """Have the other side do it.

        Returns:
            ``success``, ``output``, ``error``, and ``content`` if there is any; errors of the connection are results too.

        Raises:
            RuntimeError: There is no connection.
        """
        if self._stub is None:
            raise RuntimeError(f"gRPC channel not connected for tool '{self._name}'; build it with load_grpc_module()")
        data, content_type = self._serialize_input(kwargs)
        try:
            from ._grpc_gen import amplifier_module_pb2 as wire  # noqa: PLC0415 — needs protobuf

            request = wire.ToolExecuteRequest(input=data, content_type=content_type)
            response = await self._stub.Execute(request)
            return self._result(response)
        except Exception as exc:  # noqa: BLE001 — the other side is foreign code; a tool reports failures
            logger.error("gRPC tool '%s' failed: %s", self._name, exc)
            return {"success": False, "output": None, "error": {"message": str(exc)}}

    async def cleanup(self) -> None:
        """Close the connection."""
        if self._channel:
            await self._channel.close()

    def _result(self, response: Any) -> dict[str, Any]:
        try:
            content = self._deserialize_content_blocks(response.content_blocks)
        except ValueError:
            logger.warning("gRPC tool '%s' returned %s", self._name, _BAD_CONTENT)
            return {"success": False, "output": None, "error": {"message": f"{_BAD_CONTENT} from gRPC tool"}}
        result: dict[str, Any] = {"success": bool(response.success), "output": None, "error": None}
        if response.success:
            result["output"] = self._deserialize_output(response.output, response.content_type)
        else:
            result["error"] = {"message": response.error}
        return result if content is None else {**result, "content": content}

    def _serialize_input(self, input_dict: dict[str, Any]) -> tuple[bytes, str]:
        """The input as bytes, and what kind of bytes."""
        return json.dumps(input_dict, default=str).encode(), "application/json"

    def _deserialize_output(self, output_bytes: bytes, content_type: str) -> Any:
        """The output as a value; what is not JSON by its kind is tried as JSON all the same."""
        if content_type not in ("", "application/json"):
            logger.warning("unknown content type '%s', trying JSON", content_type)
        return json.loads(output_bytes) if output_bytes else {}

    def _deserialize_content_blocks(self, content_blocks: Any) -> list[dict[str, Any]] | None:
        """Text and images in their own form, checked like every tool result's.

        Raises:
            ValueError: They are not what a tool may return.
        """
        if not content_blocks:
            return None
        plain: Any = [_plain_block(block) for block in content_blocks]
        checked = ToolResult(content=plain).content
        return None if checked is None else [plain_block(block) for block in checked]


def _plain_block(block: Any) -> dict[str, Any]:
    kind = block.WhichOneof("block")
    if block.visibility == 0 and kind == "text_block":
        return {"type": "text", "text": block.text_block.text}
    if block.visibility == 0 and kind == "image_block" and not block.image_block.source_json:
        data = base64.b64encode(block.image_block.data).decode("ascii")
        return {"type": "image", "source": {"type": "base64", "media_type": block.image_block.media_type, "data": data}}
    raise ValueError(_BAD_CONTENT)


async def load_grpc_module(
    module_id: str, config: dict[str, Any] | None, meta: dict[str, Any], coordinator: Any
) -> Any:
    """Connect to a gRPC tool and ask what it is.

    Args:
        module_id: For whom.
        config: Not used: the tool is configured where it runs.
        meta: Its ``amplifier.toml``.
        coordinator: Not used; the result is called with one.

    Returns:
        ``await mount(coordinator)`` mounts the tool and gives its cleanup.

    Raises:
        ImportError: grpcio or protobuf is not installed.
    """
    try:
        import grpc.aio  # type: ignore[import-not-found,import-untyped,unused-ignore]  # noqa: PLC0415 — not a dependency of ours

        from ._grpc_gen import amplifier_module_pb2 as wire  # noqa: PLC0415 — needs protobuf
        from ._grpc_gen import amplifier_module_pb2_grpc as services  # noqa: PLC0415 — as above
    except ImportError as exc:
        raise ImportError(
            f"module {module_id!r} is a gRPC tool, and {exc.name!r} is not installed; install grpcio and protobuf"
        ) from exc
    endpoint = _extract_endpoint(meta, module_id)
    channel = grpc.aio.insecure_channel(endpoint)
    stub = services.ToolServiceStub(channel)
    try:
        spec = await stub.GetSpec(wire.Empty())
    except BaseException:
        await channel.close()
        raise
    bridge = GrpcToolBridge(spec.name, spec.description, spec.parameters_json, endpoint, channel)
    bridge._stub = stub

    async def mount(coord: Any) -> Any:
        await coord.mount("tools", bridge, name=bridge.name)
        return bridge.cleanup

    return mount
