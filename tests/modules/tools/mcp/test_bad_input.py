"""What is wrong with a plan or with a server gets one clear message."""

from __future__ import annotations

import json
import logging
from typing import Any

import pytest

from amplifier.errors import PlanError
from amplifier.modules.tools.mcp._options import read_mcp_options
from tests.modules.tools.mcp.desk import opened, small


def problems(servers: Any, key: str = "servers") -> list[tuple[str, str]]:
    with pytest.raises(PlanError) as caught:
        read_mcp_options({key: servers})
    return list(caught.value.problems)


@pytest.mark.parametrize(
    ("server", "path", "words"),
    [
        (
            {},
            "$.servers.x",
            "expected command (a program to start) or url (a remote server), got neither",
        ),
        ({"command": "a", "url": "http://b"}, "$.servers.x", "got both"),
        ("npx", "$.servers.x", "expected an object with command or url, got str"),
        (
            {"command": "a", "args": "b c"},
            "$.servers.x.args",
            "expected a list of texts, got 'b c'",
        ),
        ({"command": "a", "env": {"A": 1}}, "$.servers.x.env", "expected an object of texts"),
        ({"command": "a", "headers": {"a": "b"}}, "$.servers.x", "headers and oauth are for a url"),
        ({"url": "http://b", "args": ["a"]}, "$.servers.x", "args, env and cwd are for a command"),
        (
            {"url": "ftp://b"},
            "$.servers.x.url",
            "expected a URL that begins with http:// or https://",
        ),
        (
            {"url": "http://b", "headers": {"a b": "c"}},
            "$.servers.x.headers",
            "by the names of headers, got dict",
        ),
        (
            {"url": "http://b", "type": "sse"},
            "$.servers.x.type",
            "'sse' was replaced by streamable HTTP",
        ),
        ({"command": "a", "alow": ["b"]}, "$.servers.x.alow", "did you mean 'allow'"),
        (
            {"command": "a", "resources": False},
            "$.servers.x.resources",
            'use deny: ["read_resource"]',
        ),
        ({"command": "a", "prompts": False}, "$.servers.x.prompts", 'use deny: ["get_prompt"]'),
        (
            {"command": "a", "sampling": "yes"},
            "$.servers.x.sampling",
            "expected one of 'ask', 'allow', 'deny'",
        ),
        (
            {"command": "a", "open_timeout": 0},
            "$.servers.x.open_timeout",
            "expected a positive number of seconds",
        ),
        (
            {"url": "http://b", "oauth": {"client_metadata_url": "http://c/d"}},
            "$.servers.x.oauth.client_metadata_url",
            "expected an https URL with a path",
        ),
        (
            {"url": "http://b", "oauth": {"client_metadata_url": "https://c/"}},
            "$.servers.x.oauth.client_metadata_url",
            "expected an https URL with a path",
        ),
        (
            {"url": "http://b", "oauth": {"client_metadata_url": "https://c/d", "client_id": "e"}},
            "$.servers.x.oauth",
            "expected client_id or client_metadata_url, got both",
        ),
    ],
)
def test_wrong_server_is_problem_with_path(server, path, words):
    ((where, problem),) = problems({"x": server})
    assert where == path
    assert words in problem


def test_problems_are_reported_together_without_secrets():
    found = problems(
        {
            "a": {"url": "http://b", "headers": {"X": "sec\nret"}},
            "b": {"command": "c", "env": {"": "secret"}},
        }
    )
    assert [path for path, _ in found] == ["$.servers.a.headers", "$.servers.b.env"]
    assert "sec" not in str([problem for _, problem in found])


def test_configuration_of_other_hosts_is_read(caplog):
    given = {
        "fs": {
            "command": "npx",
            "args": ["-y", "server-fs"],
            "env": {"A": "b"},
            "type": "stdio",
            "autoApprove": ["x"],
        },
        "off": {"command": "x", "disabled": True},
        "web": {
            "type": "streamable-http",
            "url": "https://example.org/mcp",
            "headers": {"Authorization": "Bearer x"},
        },
    }
    options = read_mcp_options({"mcpServers": given})
    assert [(server.name, server.kind) for server in options.servers] == [
        ("fs", "stdio"),
        ("web", "http"),
    ]
    assert caplog.text == ""
    assert "Bearer" not in repr(options)


def test_secret_in_arguments_is_warned_about(caplog):
    secret = "ghp_" + "a1B2" * 9
    read_mcp_options(
        {
            "servers": {
                "x": {
                    "command": "a",
                    "args": ["serve", "--token", secret, "--api-key", "hunter2hunter"],
                }
            }
        }
    )
    warnings = [record.getMessage() for record in caplog.records]
    assert [("args[2]" in text, "args[4]" in text) for text in warnings] == [
        (True, False),
        (False, True),
    ]
    assert all("put it in env" in text for text in warnings)
    assert secret not in caplog.text
    assert "hunter2" not in caplog.text


async def test_banner_on_standard_output_is_reported(caplog):
    async with opened({"small": small("--garbage")}) as desk:
        assert (await desk.call("small_upper", text="a")).output == "A"
    assert (
        "server 'small' printed a line that is not a JSON-RPC message, ignored: 'Welcome to"
        in caplog.text
    )


@pytest.mark.parametrize(
    ("server", "words"),
    [
        (
            {
                "command": "sh",
                "args": ["-c", "echo 'Welcome to the small server!'; cat > /dev/null"],
                "open_timeout": 1.5,
            },
            "did not answer within 1.5 s; it printed 'Welcome to the small server!'",
        ),
        (small("--version=1999-01-01"), "Unsupported protocol version from the server: 1999-01-01"),
        (small(cwd="/no such folder"), "its working directory '/no such folder' does not exist"),
    ],
    ids=["garbage", "version", "directory"],
)
async def test_unusable_server_is_named_with_reason(server, words):
    async with opened({"small": server}) as desk:
        (failed,) = desk.events("mcp:server_failed")
        assert words in failed["error"]


async def test_tool_with_invalid_schema_is_left_out(caplog):
    broken = {"type": "object", "properties": {"a": {"type": "strin"}}}
    async with opened(
        {"small": small(f"--tools={json.dumps([{'name': 'broken', 'inputSchema': broken}])}")}
    ) as desk:
        assert sorted(desk.tools) == ["small_echo", "small_upper"]
    assert (
        "tool 'broken' is not used: its input schema is refused: it is not valid JSON Schema: \"strin\" is not"
        in caplog.text
    )


@pytest.mark.parametrize(
    ("tool", "words"),
    [
        ({"name": "odd", "inputSchema": 5}, "tool 'odd' is not used: invalid value at inputSchema"),
        (
            {"name": "odd", "inputSchema": {"type": "array"}},
            "tool 'odd' is not used: its input schema has type 'array', expected 'object'",
        ),
        ({"name": "odd"}, "tool 'odd' is not used: invalid value at inputSchema: Field required"),
        (
            {"name": ["odd"], "inputSchema": {"type": "object"}},
            "is not used: invalid value at name",
        ),
        *(
            (
                {"name": "odd", "inputSchema": {"type": "object", **schema}},
                f"tool 'odd' is not used: invalid value at inputSchema.{place}: Input should be a valid",
            )
            for schema, place in (
                ({"properties": []}, "properties"),
                ({"required": "a"}, "required"),
                ({"required": [1]}, "required.0"),
                ({"$schema": 3}, "$schema"),
            )
        ),
    ],
)
async def test_malformed_tool_is_left_out_and_named(tool, words, caplog):
    async with opened({"small": small(f"--first-tools={json.dumps([tool])}")}) as desk:
        assert desk.events("mcp:server_failed") == []
        assert sorted(desk.tools) == ["small_echo", "small_upper"]
        assert (await desk.call("small_upper", text="a")).output == "A"
    assert words in caplog.text
    assert "server 'small': tool" in caplog.text


async def test_tools_with_same_name_are_named(caplog):
    async with opened({"a": small(prefix="x_"), "b": small(prefix="x_")}) as desk:
        assert sorted(desk.tools) == ["x_echo", "x_upper"]
        assert desk.tools["x_echo"].server == "a"
    warning = "server 'b': a tool is not mounted, because server 'a' already has a tool with the name 'x_echo'"
    assert warning in caplog.text


async def test_unacceptable_names_are_changed():
    odd = [
        {"name": "read.me/now", "inputSchema": {"type": "object"}},
        {"name": "n" * 100, "inputSchema": {"type": "object"}},
    ]
    async with opened(
        {"my server": small(f"--tools={json.dumps(odd)}", allow=["read*", "nn*"])}
    ) as desk:
        short, long = sorted(desk.tools, key=len)
        assert short == "my_server_read_me_now"
        assert len(long) == 64


async def test_environment_secrets_stay_out_of_events(caplog):
    caplog.set_level(logging.DEBUG)
    secret = "value-nobody-may-see"
    code = "import os, sys; sys.exit('bad key ' + os.environ['MY_KEY'])"
    async with opened(
        {"x": {"command": "python3", "args": ["-c", code], "env": {"MY_KEY": secret}}}
    ) as desk:
        (failed,) = desk.events("mcp:server_failed")
        assert "bad key [REDACTED]" in failed["error"]
        assert secret not in str(desk.recorder.events)
    assert secret not in caplog.text
