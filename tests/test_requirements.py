"""What a distribution asks for and is installed in another version."""

from __future__ import annotations

from pathlib import Path

import pytest

from amplifier._requirements import unmet_requirements


@pytest.fixture
def install(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.syspath_prepend(tmp_path)

    def install(name: str, version: str, *requirements: str) -> None:
        info = tmp_path / f"{name}-{version}.dist-info"
        info.mkdir()
        rest = "".join(f"Requires-Dist: {each}\n" for each in requirements)
        (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n{rest}")

    return install


@pytest.mark.parametrize(
    ("limits", "is_met"),
    [
        ("", True),
        (">=2.54", True),
        (">=2.54.1", False),
        ("<2.54", False),
        ("<3,>=2", True),
        ("==2.54.0", True),
        ("==2.*", True),
        ("==1.*", False),
        ("!=2.54", False),
        ("!=2.*", False),
        ("~=2.8", True),
        ("~=2.8.1", False),
        (">2.53,<=2.54", True),
        ("===odd", True),
    ],
)
def test_a_version_is_compared_with_what_is_asked_for(install, limits: str, is_met: bool):
    install("asking", "1.0", f"some-sdk{limits}", "absent>=9")
    install("some_sdk", "2.54")
    said = [] if is_met else [f"asking needs some-sdk {limits}, and 2.54 is installed"]
    assert unmet_requirements("asking") == said


def test_the_requirements_of_an_extra_are_asked_for_by_its_name(install):
    install(
        "asking", "1.0", 'some-sdk>=3; extra == "one"', "some-sdk (>=4) ; extra == 'two'", "some-sdk>=5; os_name == 'x'"
    )
    install("some_sdk", "2.54")
    assert unmet_requirements("asking") == []
    assert unmet_requirements("asking", "one") == ["asking needs some-sdk >=3, and 2.54 is installed"]
    assert unmet_requirements("asking", "two") == ["asking needs some-sdk >=4, and 2.54 is installed"]
    assert unmet_requirements("nobody") == []
