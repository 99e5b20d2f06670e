"""`amplifier plan check` reads three formats, prints every problem and sets the exit code."""

from __future__ import annotations

import json
import subprocess
import sys
from importlib.resources import files
from pathlib import Path
from typing import Any

import pytest

from amplifier.cli import main
from amplifier.plan import check_plan
from tests.loading._forge import distribution

GOOD = {"session": {"orchestrator": {"module": "loop-basic"}, "context": {"module": "context-simple"}}}

GOOD_FILES = {
    "plan.json": json.dumps(GOOD),
    "plan.toml": '[session.orchestrator]\nmodule = "loop-basic"\n[session.context]\nmodule = "context-simple"\n',
    "plan.yaml": "session:\n  orchestrator: {module: loop-basic}\n  context: {module: context-simple}\n",
    "plan.YML": "session:\n  orchestrator: {module: loop-basic}\n  context: {module: context-simple}\n",
}


@pytest.mark.parametrize("name", GOOD_FILES)
def test_a_good_plan_passes_in_every_format(name, tmp_path, capsys):
    file = tmp_path / name
    file.write_text(GOOD_FILES[name])
    assert main(["plan", "check", str(file)]) == 0
    assert capsys.readouterr().out == f"{file}: ok\n"


def test_every_problem_is_printed_with_its_path(tmp_path, capsys):
    bad = {"session": {"context": {"module": 7}}, "tools": [{"config": {}}, {"module": ""}]}
    file = tmp_path / "plan.json"
    file.write_text(json.dumps(bad))
    assert main(["plan", "check", str(file)]) == 1
    expected = [f"{file}: {path}: {problem}" for path, problem in check_plan(bad)[0]]
    assert len(expected) >= 3
    assert capsys.readouterr().out.splitlines() == expected


def test_a_warning_is_printed_and_fails_the_check(tmp_path, capsys):
    odd = {**GOOD, "no_such_section": {}}
    _, warnings = check_plan(odd)
    assert warnings
    file = tmp_path / "plan.json"
    file.write_text(json.dumps(odd))
    assert main(["plan", "check", str(file)]) == 1
    captured = capsys.readouterr()
    assert captured.out == ""
    assert captured.err.splitlines() == [f"{file}: warning: {warning}" for warning in warnings]


def test_a_misspelt_section_is_a_problem_with_the_name_that_was_meant(tmp_path, capsys):
    file = tmp_path / "plan.yaml"
    file.write_text(GOOD_FILES["plan.yaml"] + "hoks:\n  - {module: hooks-approval, on_failure: deny}\n")
    assert main(["plan", "check", str(file)]) == 1
    problem = "unknown section 'hoks'; did you mean 'hooks'? Rename or remove it: it would be ignored"
    assert capsys.readouterr().out == f"{file}: $.hoks: {problem}\n"


def test_a_built_in_module_whose_extra_is_missing_is_a_problem(tmp_path, capsys, monkeypatch):
    monkeypatch.setitem(sys.modules, "truststore", None)
    monkeypatch.setitem(sys.modules, "xllamacpp", None)
    sourced = {"module": "tool-web", "source": "./mine"}
    file = write(tmp_path, {**GOOD, "providers": ["provider-local"], "tools": ["tool-web", "tool-todo", sourced]})
    assert main(["plan", "check", str(file)]) == 1
    expected = [
        ("$.providers[0]", "provider-local", "xllamacpp", "local"),
        ("$.tools[0]", "tool-web", "truststore", "web"),
    ]
    assert capsys.readouterr().out.splitlines() == [
        f"{file}: {path}: module {module_id!r} needs {package}, which is not installed; "
        f"install it with: pip install 'amplifier[{extra}]'"
        for path, module_id, package, extra in expected
    ]


@pytest.mark.parametrize("text", ["", "[]", "7", "null"])
def test_a_file_without_a_mapping_is_a_problem_and_not_a_crash(text, tmp_path, capsys):
    file = tmp_path / "plan.yaml"
    file.write_text(text)
    assert main(["plan", "check", str(file)]) == 1
    assert str(file) in capsys.readouterr().out


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
        ("plan.json", b"[" * 100_000, "nested too deeply"),
        ("plan.yaml", b"[" * 5_000, "nested more than 100 levels deep"),
    ],
)
def test_a_file_that_cannot_be_parsed_is_named_with_the_reason(name, content, expected, tmp_path, capsys):
    file = tmp_path / name
    file.write_bytes(content)
    assert main(["plan", "check", str(file)]) == 1
    reported = capsys.readouterr().err
    assert reported.startswith(f"amplifier: {file}: ")
    assert expected in reported


def test_a_file_of_another_kind_is_a_usage_error(tmp_path, capsys):
    file = tmp_path / "plan.ini"
    file.write_text("")
    assert main(["plan", "check", str(file)]) == 2
    assert "'plan.ini' ends in '.ini'; expected one of .yaml, .yml, .toml, .json" in capsys.readouterr().err


def test_a_file_that_is_not_there_is_a_usage_error(tmp_path, capsys):
    assert main(["plan", "check", str(tmp_path / "plan.yaml")]) == 2
    assert "does not exist" in capsys.readouterr().err


def test_without_pyyaml_one_line_names_the_extra_to_install(tmp_path):
    file = tmp_path / "plan.yaml"
    file.write_text(GOOD_FILES["plan.yaml"])
    program = (
        "import sys; sys.modules['yaml'] = None; from amplifier.cli import main; "
        f"sys.exit(main(['plan', 'check', {str(file)!r}]))"
    )
    finished = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False)
    assert (finished.returncode, finished.stdout) == (2, "")
    assert finished.stderr == (
        "amplifier: reading YAML plans needs an optional part (pyyaml is not installed); "
        "install it with: pip install 'amplifier[cli]'\n"
    )


def write(tmp_path: Path, plan: dict[str, Any]) -> Path:
    file = tmp_path / "plan.json"
    file.write_text(json.dumps(plan))
    return file


def test_modules_that_nothing_provides_are_problems(tmp_path, capsys):
    session = {"orchestrator": "loop-nope", "context": {"module": "context-simpel"}}
    file = write(tmp_path, {"session": session, "tools": ["tool-nope", {"module": "tool-search"}, {"module": 7}]})
    assert main(["plan", "check", str(file)]) == 1
    advice = "install it, name its folder in AMPLIFIER_MODULES or give its 'source'"
    printed = capsys.readouterr().out.splitlines()
    assert printed[1:] == [
        f"{file}: $.session.orchestrator: no module 'loop-nope' is installed; {advice}",
        f"{file}: $.session.context: no module 'context-simpel' is installed; did you mean 'context-simple'?",
        f"{file}: $.tools[0]: no module 'tool-nope' is installed; {advice}",
    ]
    assert printed[0].startswith(f"{file}: $.tools[2].module: ")


def test_a_module_with_a_source_or_on_a_search_path_is_not_missing(tmp_path, monkeypatch, capsys):
    for folder in ("amplifier-module-tool-one", "amplifier_module_tool_two"):
        (tmp_path / "found" / folder).mkdir(parents=True)
        (tmp_path / "found" / folder / "__init__.py").touch()
    (tmp_path / "site" / "amplifier_module_tool_three").mkdir(parents=True)
    (tmp_path / "site" / "amplifier_module_tool_three" / "__init__.py").write_text("raise RuntimeError('imported')")
    monkeypatch.setenv("AMPLIFIER_MODULES", str(tmp_path / "found"))
    monkeypatch.syspath_prepend(tmp_path / "site")
    session = {"orchestrator": "loop-own", "orchestrator_source": "loops", "context": "context-simple"}
    given = [{"module": "tool-four", "source": "git+https://example.org/four"}]
    file = write(tmp_path, {"session": session, "tools": ["tool-one", "tool-two", "tool-three", *given]})
    assert main(["plan", "check", str(file)]) == 0
    assert capsys.readouterr().out == f"{file}: ok\n"


def test_the_schema_is_printed_as_it_is_shipped(capsys):
    assert main(["plan", "schema"]) == 0
    assert capsys.readouterr().out == files("amplifier.plan").joinpath("mount-plan.schema.json").read_text("utf-8")


def test_a_plan_that_names_its_schema_for_the_editor_is_good(tmp_path, capsys):
    file = tmp_path / "plan.json"
    file.write_text(json.dumps({"$schema": "mount-plan.schema.json", **GOOD}))
    assert main(["plan", "check", str(file)]) == 0
    captured = capsys.readouterr()
    assert (captured.out, captured.err) == (f"{file}: ok\n", "")


def test_variables_are_filled_in_before_a_plan_is_judged(tmp_path, capsys, monkeypatch):
    monkeypatch.setenv("THE_LOOP", "loop-basic")
    file = tmp_path / "plan.json"
    file.write_text(json.dumps({"session": {"orchestrator": "${THE_LOOP}", "context": "${NOT_SET:-context-simple}"}}))
    assert main(["plan", "check", str(file)]) == 0
    assert capsys.readouterr().out == f"{file}: ok\n"
    monkeypatch.setenv("THE_LOOP", "Loop!")
    assert main(["plan", "check", str(file)]) == 1
    assert "got 'Loop!'" in capsys.readouterr().out


def test_a_variable_that_is_not_set_here_is_a_note_and_fails_nothing(tmp_path, capsys, monkeypatch):
    monkeypatch.delenv("THE_KEY", raising=False)
    file = tmp_path / "plan.json"
    file.write_text(json.dumps({**GOOD, "tools": [{"module": "tool-todo", "config": {"key": "${THE_KEY}"}}]}))
    assert main(["plan", "check", str(file)]) == 0
    captured = capsys.readouterr()
    assert captured.out == f"{file}: ok\n"
    assert captured.err.startswith(f"{file}: note: $.tools[0].config.key: variable 'THE_KEY' is not set")


def test_a_variable_that_is_not_set_where_a_module_belongs_is_a_problem(tmp_path, capsys, monkeypatch):
    monkeypatch.delenv("THE_LOOP", raising=False)
    file = tmp_path / "plan.json"
    file.write_text(json.dumps({"session": {"orchestrator": "${THE_LOOP}", "context": "context-simple"}}))
    assert main(["plan", "check", str(file)]) == 1
    captured = capsys.readouterr()
    assert "$.session.orchestrator: expected a module id" in captured.out
    assert "variable 'THE_LOOP' is not set" in captured.err


def test_a_malformed_reference_is_a_problem_beside_the_others(tmp_path, capsys):
    file = tmp_path / "plan.json"
    file.write_text(json.dumps({"session": {**GOOD["session"], "strict": 5}, "agents": {"a": "${1x}"}}))
    assert main(["plan", "check", str(file)]) == 1
    captured = capsys.readouterr().out
    assert "$.agents.a: write ${NAME}" in captured
    assert "$.session.strict" in captured


# ── pins ─────────────────────────────────────────────────────────────────────────────────────────


def checked(tmp_path, capsys, *tools: Any, **session: Any) -> tuple[int, str]:
    file = tmp_path / "plan.json"
    file.write_text(json.dumps({"session": {**GOOD["session"], **session}, "tools": list(tools)}))
    code = main(["plan", "check", str(file)])
    return code, capsys.readouterr().out


@pytest.mark.parametrize("source", ["builtin", {"distribution": "amplifier"}, "/some/where", {"git": "x"}])
def test_a_source_that_matches_or_is_not_a_pin_is_accepted(source, tmp_path, capsys):
    assert checked(tmp_path, capsys, {"module": "tool-todo", "source": source})[0] == 0


@pytest.mark.parametrize(
    ("source", "words"),
    [
        ({"distribution": "absent"}, "pinned to the distribution 'absent', which does not provide it"),
        ({"distribution": 5}, "$.tools[0].source.distribution: expected the name of an installed distribution, got 5"),
        ({"distribution": " "}, "expected the name of an installed distribution"),
    ],
)
def test_a_pin_that_matches_nothing_is_a_problem(source, words, tmp_path, capsys):
    code, captured = checked(tmp_path, capsys, {"module": "tool-todo", "source": source})
    assert (code, words in captured) == (1, True), captured


def test_the_source_of_a_loop_that_is_named_by_its_id_is_looked_at_too(tmp_path, capsys):
    code, captured = checked(
        tmp_path, capsys, orchestrator="loop-basic", orchestrator_source={"distribution": "absent"}
    )
    assert code == 1
    assert "$.session.orchestrator: module 'loop-basic' is pinned" in captured
    assert checked(tmp_path, capsys, orchestrator="loop-basic", orchestrator_source="builtin")[0] == 0


def test_a_contested_id_is_a_problem_until_one_is_pinned(tmp_path, capsys, monkeypatch):
    for name in ("acme", "evil"):
        distribution(tmp_path / "site", name, {"tool-todo": f"{name}:mount"})
    monkeypatch.syspath_prepend(tmp_path / "site")
    code, captured = checked(tmp_path, capsys, "tool-todo")
    assert code == 1
    assert "claimed by entry point tool-todo of acme 1.0" in captured
    assert checked(tmp_path, capsys, {"module": "tool-todo", "source": {"distribution": "evil"}})[0] == 0


def _laughs(first: str, again: str) -> str:
    """Nine levels, each of which has the one before it nine times: a few hundred bytes stand for 387 million values."""
    lines = [f"l0: &l0 {first}"]
    lines += [f"l{level}: &l{level} " + again.format(", ".join([f"*l{level - 1}"] * 9)) for level in range(1, 10)]
    return "\n".join(lines) + "\n"


BOMBS = {
    "lists": _laughs("[x, x]", "[{}]"),
    "merge keys": _laughs("{a: x}", "{{<<: [{}]}}"),
    "a long text": "text: &text " + "x" * 10_000 + "\nmany: [" + ", ".join(["*text"] * 1000) + "]\n",
}


@pytest.mark.parametrize(
    "arguments",
    [["plan", "check"], ["plan", "show"], ["run", "hello", "--plan"]],
    ids=lambda words: words[0] + words[1][:5],
)
@pytest.mark.parametrize("bomb", BOMBS)
def test_aliases_that_expand_to_gigabytes_are_refused(arguments, bomb, tmp_path, capsys, monkeypatch):
    monkeypatch.setenv("AMPLIFIER_HOME", str(tmp_path / "home"))
    file = tmp_path / "plan.yaml"
    file.write_text(GOOD_FILES["plan.yaml"] + BOMBS[bomb])
    assert main([*arguments, str(file)]) == (1 if arguments == ["plan", "check"] else 2)
    assert "with its aliases expanded it has more than 1,000,000 characters" in capsys.readouterr().err


HUGE = {
    "complex keys": ("".join(f"? [k{n}, b]\n: v\n" for n in range(50_000)), "more than 50,000 tokens"),
    "keys": ("".join(f"k{n}: v\n" for n in range(50_000)), "more than 50,000 tokens"),
    "brackets": ("a: " + "[" * 50_000, "nested more than 100 levels deep"),
    "levels": ("- " * 500, "nested more than 100 levels deep"),
    "a number of base 60": ("a: " + "1:" * 100_000 + "1", "that is no text"),
    "characters": ("# " + "x" * 2_000_000, "more than the 1,000,000 that a plan may have"),
}


@pytest.mark.parametrize("kind", HUGE)
def test_what_would_keep_the_parser_busy_is_refused(kind, tmp_path, capsys):
    file = tmp_path / "plan.yaml"
    text, words = HUGE[kind]
    file.write_text(text)
    assert main(["plan", "check", str(file)]) == 1
    assert words in capsys.readouterr().err


def test_an_alias_inside_of_its_own_anchor_is_refused(tmp_path, capsys):
    file = tmp_path / "plan.yaml"
    file.write_text("session: &a {orchestrator: *a}\n")
    assert main(["plan", "check", str(file)]) == 1
    assert "the alias in line 1 refers to a node that contains it" in capsys.readouterr().err


def test_aliases_within_reason_work(tmp_path, capsys):
    file = tmp_path / "plan.yaml"
    loop = "{module: loop-basic, config: &common {max_iterations: 3}}"
    file.write_text(
        f"session:\n  orchestrator: {loop}\n  context: {{module: context-simple}}\nagents: {{a: *common}}\n"
    )
    assert main(["plan", "show", str(file)]) == 0
    assert json.loads(capsys.readouterr().out)["agents"] == {"a": {"max_iterations": 3}}


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
        ("plan.yaml", "one: &a {x: 1}\ntwo:\n  <<: *a\n  y: 1\n  y: 2\n", "'y'", "lines 4 and 5"),
        ("plan.yaml", "=: 1\n=: 2\n", "'='", "lines 1 and 2"),
        ("plan.yaml", "{a: 1, a: 2}", "'a'", "line 1"),
        ("plan.json", '{"hooks": ["a"],\n "x": "\\"{",\n "hooks": []}', "'hooks'", "lines 1 and 3"),
        ("plan.json", '{"t": [{"config": {"x": 1,\n"y": [{}, {"x": 2}],\n"\\u0078": 2}}]}', "'x'", "lines 1 and 3"),
        ("plan.json", '{"a": 1, "a": 2}', "'a'", "line 1"),
    ],
)
@pytest.mark.parametrize("arguments", [["plan", "check"], ["run", "hi", "--plan"]], ids=lambda words: words[0])
def test_a_key_that_is_written_twice_is_refused(arguments, name, content, key, lines, tmp_path, capsys, monkeypatch):
    monkeypatch.setenv("AMPLIFIER_HOME", str(tmp_path / "home"))
    file = tmp_path / name
    file.write_text(content)
    assert main([*arguments, str(file)]) == (1 if arguments == ["plan", "check"] else 2)
    assert f"{file}: the key {key} is written twice, in {lines}; " in capsys.readouterr().err


@pytest.mark.parametrize(
    ("name", "content"),
    [
        ("plan.json", json.dumps({**GOOD, "agents": {"a": {"x": [{"x": 1}, {"x": '{"x":'}]}, "x": {"x": 1}}})),
        (
            "plan.yaml",
            GOOD_FILES["plan.yaml"]
            + "agents:\n  a: &a {x: 1, y: 1}\n  b: &b {x: 2, z: 2}\n  c: {<<: *a, x: 3}\n  d: {<<: [*a, *b], z: 4}\n"
            + "  e:\n    <<: *a\n    <<: *b\n    x: 5\n  f: [*a, *a]\n",
        ),
    ],
)
def test_equal_keys_in_two_places_and_keys_that_a_merge_brings_too_are_accepted(name, content, tmp_path, capsys):
    file = tmp_path / name
    file.write_text(content)
    assert main(["plan", "check", str(file)]) == 0, capsys.readouterr()
