"""The tool keeps its contract: one test for each clause and backend. Run it with ``pytest examples/test_custom_tool.py``."""

from __future__ import annotations

from pathlib import Path

from amplifier.conformance.suites import conformance_tests

test_word_count = conformance_tests(Path(__file__).with_name("custom_tool.py"))
