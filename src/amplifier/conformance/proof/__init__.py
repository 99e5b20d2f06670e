"""Proves a plan: runs the composition of its modules with a scripted model, drawn faults and cancellations. Needs the ``testing`` extra."""

from amplifier.conformance.proof.search import Broken, Proof, examine_plan, prove_plan

__all__ = ["Broken", "Proof", "examine_plan", "prove_plan"]
