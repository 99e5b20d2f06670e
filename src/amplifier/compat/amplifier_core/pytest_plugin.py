"""The fixtures that published modules' suites ask for."""
