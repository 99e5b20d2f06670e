"""The proof of a plan: its modules with a scripted model, drawn faults and cancellations.

Needs the extra ``testing``.
"""

from amplifier.conformance.proof.search import Broken, Proof, examine_plan, prove_plan

__all__ = ["Broken", "Proof", "examine_plan", "prove_plan"]
