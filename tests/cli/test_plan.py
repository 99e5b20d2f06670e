"""`amplifier plan check` reads three formats, prints every problem and sets the exit code."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from importlib.resources import files
from typing import Any

import pytest

from amplifier.cli import main
from amplifier.plan import LOCAL_MODEL_ADVICE, check_plan
from tests._support.terminal import run_without
from tests.loading._forge import distribution

GOOD = {
    "session": {"orchestrator": {"module": "loop-basic"}, "context": {"module": "context-simple"}}
}

GOOD_FILES = {
    "plan.json": json.dumps(GOOD),
    "plan.toml": '[session.orchestrator]\nmodule = "loop-basic"\n[session.context]\nmodule = "context-simple"\n',
    "plan.yaml": "session:\n  orchestrator: {module: loop-basic}\n  context: {module: context-simple}\n",
    "plan.YML": "session:\n  orchestrator: {module: loop-basic}\n  context: {module: context-simple}\n",
}


@pytest.fixture
def check(tmp_path, cli) -> Callable[..., Any]:
    """Checks a plan in a file of this name, which has to end with this code; returns what is printed, with the file as FILE."""

    def run(content: Any, code: int = 0, *, name: str = "plan.json") -> tuple[str, str]:
        file = tmp_path / name
        text = content if isinstance(content, bytes | str) else json.dumps(content)
        file.write_bytes(text if isinstance(text, bytes) else text.encode())
        printed = cli("plan", "check", str(file), code=code)
        return printed.out.replace(str(file), "FILE"), printed.err.replace(str(file), "FILE")

    return run


@pytest.mark.parametrize("name", GOOD_FILES)
def test_good_plan_passes_in_every_format(name, check):
    assert check(GOOD_FILES[name], name=name) == ("FILE: ok\n", "")


def test_every_problem_is_printed_with_its_path(check):
    bad = {"session": {"context": {"module": 7}}, "tools": [{"config": {}}, {"module": ""}]}
    expected = [f"FILE: {path}: {problem}" for path, problem in check_plan(bad)[0]]
    assert len(expected) >= 3
    assert check(bad, 1)[0].splitlines() == expected


def test_warning_is_printed_and_fails_check(check):
    odd = {**GOOD, "no_such_section": {}}
    _, warnings = check_plan(odd)
    assert warnings
    assert check(odd, 1) == ("", "".join(f"FILE: warning: {warning}\n" for warning in warnings))


def test_misspelt_section_problem_names_intended_one(check):
    given = GOOD_FILES["plan.yaml"] + "hoks:\n  - {module: hooks-approval, on_failure: deny}\n"
    problem = (
        "unknown section 'hoks'; did you mean 'hooks'? Rename or remove it: it would be ignored"
    )
    assert check(given, 1, name="plan.yaml")[0] == f"FILE: $.hoks: {problem}\n"


def test_built_in_module_without_extra_is_problem(check, monkeypatch):
    monkeypatch.setitem(sys.modules, "truststore", None)
    monkeypatch.setitem(sys.modules, "httpx2", None)
    sourced = {"module": "tool-web", "source": "./mine"}
    given = {**GOOD, "providers": ["provider-openai"], "tools": ["tool-web", "tool-todo", sourced]}
    expected = [
        ("$.providers[0]", "provider-openai", "httpx2", "openai"),
        ("$.tools[0]", "tool-web", "truststore", "providers"),
    ]
    assert check(given, 1)[0].splitlines() == [
        f"FILE: {path}: module {module_id!r} needs {package}, which is not installed; "
        f"install it with: pip install 'amplifier[{extra}]'"
        for path, module_id, package, extra in expected
    ]


def test_removed_provider_problem_gives_replacement(check):
    reported = check({**GOOD, "providers": ["provider-local"]}, 1)[0]
    assert (
        reported
        == f"FILE: $.providers[0]: no module 'provider-local' is installed; {LOCAL_MODEL_ADVICE}\n"
    )


@pytest.mark.parametrize("text", ["", "[]", "7", "null"])
def test_file_without_mapping_is_problem(text, check):
    assert "FILE" in check(text, 1, name="plan.yaml")[0]


@pytest.mark.parametrize(
    ("name", "content", "expected"),
    [
        ("plan.json", b"{", "not valid JSON"),
        ("plan.toml", b"= 1", "not valid TOML"),
        ("plan.yaml", b"a: [", "not valid YAML"),
        ("plan.yaml", b"\xff\xfe", "not valid YAML"),
        ("plan.yaml", b"session: \x00", "not valid YAML"),
        ("plan.yaml", b"!!map x: 1", "not valid YAML"),
        ("plan.yaml", b"[x]: 1", "not valid YAML"),
        (
            "plan.yaml",
            b"a: &a [x]\nb: [*a, *a]\n",
            "line 2: plans have no aliases (*name); write the value again",
        ),
        ("plan.yaml", b"session: &a {orchestrator: *a}\n", "line 1: plans have no aliases"),
        ("plan.json", b"[" * 100_000, "nested too deeply"),
        ("plan.yaml", b"[" * 5_000, "nested more than 100 levels deep"),
    ],
)
def test_unparseable_file_is_named_with_reason(name, content, expected, check):
    reported = check(content, 1, name=name)[1]
    assert reported.startswith("amplifier: FILE: ")
    assert expected in reported


def test_unsupported_or_missing_file_is_usage_error(check, cli, tmp_path):
    expected = "'plan.ini' ends in '.ini'; expected one of .yaml, .yml, .toml, .json"
    assert expected in check("", 2, name="plan.ini")[1]
    assert "does not exist" in cli("plan", "check", str(tmp_path / "plan.yaml"), code=2).err


def test_missing_pyyaml_names_extra(home, workdir):
    (workdir / "plan.yaml").write_text(GOOD_FILES["plan.yaml"])
    finished = run_without("yaml", "plan", "check", "plan.yaml", home=home, cwd=workdir)
    assert (finished.returncode, finished.stdout) == (2, "")
    assert finished.stderr == (
        "amplifier: reading YAML plans needs an optional part (pyyaml is not installed); "
        "install it with: pip install 'amplifier[cli]'\n"
    )


def test_unknown_modules_are_problems(check):
    session = {"orchestrator": "loop-nope", "context": {"module": "context-simpel"}}
    given = {"session": session, "tools": ["tool-nope", {"module": "tool-search"}, {"module": 7}]}
    advice = "install it, name its folder in AMPLIFIER_MODULES or give its 'source'"
    first, *printed = check(given, 1)[0].splitlines()
    assert first.startswith("FILE: $.tools[2].module: ")
    assert printed == [
        f"FILE: $.session.orchestrator: no module 'loop-nope' is installed; {advice}",
        "FILE: $.session.context: no module 'context-simpel' is installed; did you mean 'context-simple'?",
        f"FILE: $.tools[0]: no module 'tool-nope' is installed; {advice}",
    ]


def test_module_with_source_is_not_missing(tmp_path, monkeypatch, check):
    for folder in ("amplifier-module-tool-one", "amplifier_module_tool_two"):
        (tmp_path / "found" / folder).mkdir(parents=True)
        (tmp_path / "found" / folder / "__init__.py").touch()
    (tmp_path / "site" / "amplifier_module_tool_three").mkdir(parents=True)
    (tmp_path / "site" / "amplifier_module_tool_three" / "__init__.py").write_text(
        "raise RuntimeError('imported')"
    )
    monkeypatch.setenv("AMPLIFIER_MODULES", str(tmp_path / "found"))
    monkeypatch.syspath_prepend(tmp_path / "site")
    session = {
        "orchestrator": "loop-own",
        "orchestrator_source": "loops",
        "context": "context-simple",
    }
    given = [{"module": "tool-four", "source": "git+https://example.org/four"}]
    assert (
        check({"session": session, "tools": ["tool-one", "tool-two", "tool-three", *given]})[0]
        == "FILE: ok\n"
    )


def test_schema_is_printed_and_may_be_named(check, cli):
    assert cli("plan", "schema").out == files("amplifier.plan").joinpath(
        "mount-plan.schema.json"
    ).read_text("utf-8")
    assert check({"$schema": "mount-plan.schema.json", **GOOD}) == ("FILE: ok\n", "")


def test_variables_are_expanded_before_check(check, monkeypatch):
    given = {"session": {"orchestrator": "${THE_LOOP}", "context": "${NOT_SET:-context-simple}"}}
    monkeypatch.setenv("THE_LOOP", "loop-basic")
    assert check(given)[0] == "FILE: ok\n"
    monkeypatch.setenv("THE_LOOP", "Loop!")
    assert "got 'Loop!'" in check(given, 1)[0]
    monkeypatch.delenv("THE_LOOP")  # a note elsewhere, but here a module is named by it
    problem, note = check(given, 1)
    assert "$.session.orchestrator: expected a module id" in problem
    assert "variable 'THE_LOOP' is not set" in note


def test_unset_variable_is_note(check, monkeypatch):
    monkeypatch.delenv("THE_KEY", raising=False)
    printed, note = check(
        {**GOOD, "tools": [{"module": "tool-todo", "config": {"key": "${THE_KEY}"}}]}
    )
    assert printed == "FILE: ok\n"
    assert note.startswith("FILE: note: $.tools[0].config.key: variable 'THE_KEY' is not set")


def test_malformed_reference_is_problem(check):
    printed, _ = check({"session": {**GOOD["session"], "strict": 5}, "agents": {"a": "${1x}"}}, 1)
    assert "$.agents.a: write ${NAME}" in printed
    assert "$.session.strict" in printed


# ── pins ─────────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize(
    ("source", "problem"),
    [
        ("builtin", None),
        ({"distribution": "amplifier"}, None),
        ("/some/where", None),
        ({"git": "x"}, None),
        (
            {"distribution": "absent"},
            "pinned to the distribution 'absent', which does not provide it",
        ),
        (
            {"distribution": 5},
            "$.tools[0].source.distribution: expected the name of an installed distribution, got 5",
        ),
        ({"distribution": " "}, "expected the name of an installed distribution"),
    ],
)
def test_unmatched_pin_is_problem(source, problem, check):
    printed, _ = check(
        {**GOOD, "tools": [{"module": "tool-todo", "source": source}]}, 0 if problem is None else 1
    )
    assert problem is None or problem in printed


def test_loop_source_is_checked_too(check):
    session = {**GOOD["session"], "orchestrator": "loop-basic"}
    printed, _ = check(
        {"session": {**session, "orchestrator_source": {"distribution": "absent"}}}, 1
    )
    assert "$.session.orchestrator: module 'loop-basic' is pinned" in printed
    check({"session": {**session, "orchestrator_source": "builtin"}})


def test_contested_id_is_problem_until_pinned(tmp_path, check, monkeypatch):
    for name in ("acme", "evil"):
        distribution(tmp_path / "site", name, {"tool-todo": f"{name}:mount"})
    monkeypatch.syspath_prepend(tmp_path / "site")
    assert (
        "claimed by entry point tool-todo of acme 1.0"
        in check({**GOOD, "tools": ["tool-todo"]}, 1)[0]
    )
    check({**GOOD, "tools": [{"module": "tool-todo", "source": {"distribution": "evil"}}]})


HUGE = {
    "complex keys": (
        "".join(f"? [k{n}, b]\n: v\n" for n in range(50_000)),
        "more than 50,000 tokens",
    ),
    "keys": ("".join(f"k{n}: v\n" for n in range(50_000)), "more than 50,000 tokens"),
    "brackets": ("a: " + "[" * 50_000, "nested more than 100 levels deep"),
    "levels": ("- " * 500, "nested more than 100 levels deep"),
    "a number of base 60": ("a: " + "1:" * 100_000 + "1", "that is not text"),
    "characters": ("# " + "x" * 2_000_000, "more than the 1,000,000 that a plan may have"),
}


@pytest.mark.parametrize("kind", HUGE)
def test_parser_bomb_is_refused(kind, check):
    text, words = HUGE[kind]
    assert words in check(text, 1, name="plan.yaml")[1]


TWO_GATES = """\
session: {orchestrator: loop-basic, context: context-simple}
hooks:
  - {module: hooks-approval, on_failure: deny}
hooks:
  - {module: hooks-logging}
"""


@pytest.mark.parametrize(
    ("name", "content", "key", "lines"),
    [
        ("plan.yaml", TWO_GATES, "'hooks'", "lines 2 and 4"),
        ("plan.yaml", TWO_GATES.replace("hooks:", '"hooks":', 1), "'hooks'", "lines 2 and 4"),
        (
            "plan.yaml",
            "tools:\n  - module: a\n    config:\n      x: 1\n      y: {1: 0,\n 0x1: 0}\n",
            "1",
            "lines 5 and 6",
        ),
        ("plan.yaml", "=: 1\n=: 2\n", "'='", "lines 1 and 2"),
        ("plan.yaml", "{a: 1, a: 2}", "'a'", "line 1"),
        ("plan.json", '{"hooks": ["a"],\n "x": "\\"{",\n "hooks": []}', "'hooks'", "lines 1 and 3"),
        (
            "plan.json",
            '{"t": [{"config": {"x": 1,\n"y": [{}, {"x": 2}],\n"\\u0078": 2}}]}',
            "'x'",
            "lines 1 and 3",
        ),
        ("plan.json", '{"a": 1, "a": 2}', "'a'", "line 1"),
    ],
)
@pytest.mark.parametrize(
    "arguments", [["plan", "check"], ["run", "hi", "--plan"]], ids=lambda words: words[0]
)
def test_duplicate_key_is_refused(
    arguments, name, content, key, lines, tmp_path, capsys, monkeypatch
):
    monkeypatch.setenv("AMPLIFIER_HOME", str(tmp_path / "home"))
    file = tmp_path / name
    file.write_text(content)
    assert main([*arguments, str(file)]) == (1 if arguments == ["plan", "check"] else 2)
    assert f"{file}: the key {key} is written twice, in {lines}; " in capsys.readouterr().err


@pytest.mark.parametrize(
    ("name", "content"),
    [
        (
            "plan.json",
            json.dumps({**GOOD, "agents": {"a": {"x": [{"x": 1}, {"x": '{"x":'}]}, "x": {"x": 1}}}),
        ),
        ("plan.yaml", GOOD_FILES["plan.yaml"] + "agents:\n  a: {x: 1, y: 1}\n  b: {x: 2}\n"),
    ],
)
def test_equal_keys_in_two_places_are_accepted(name, content, check):
    check(content, name=name)
