"""Making ``amplifier_core`` importable: in this process, in child processes, in every process of an environment."""
