"""What-if analysis: the records of a live control plane, copied into a simulated world in which faults are injected.

    snapshot.py      reads a store, and nothing else; a world whose blades are the nodes of the copy
    question.py      the question: drains and faults; and the answer: what moves, what finds no capacity, and why
    slice_report.py  the effects on slices

The copied store is only read, so its users are not affected.
"""

from hostler.sim.whatif.question import Affected, Answer, Fate, Question, ask
from hostler.sim.whatif.snapshot import Copied, copy_records

__all__ = ["Affected", "Answer", "Copied", "Fate", "Question", "ask", "copy_records"]
