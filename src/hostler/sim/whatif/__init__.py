"""What would happen if: the records of a living control plane, copied into a world of their own, and broken there.

    copied.py    reads a store, and nothing else
    scene.py     a world whose blades are its nodes, with the machines that run there
    question.py  what is asked: drains and faults; and the answer: what moves, what finds no room, and why

The store that was copied is not touched, and nobody it belongs to notices.
"""

from hostler.sim.whatif.question import Affected, Answer, Fate, Question, ask
from hostler.sim.whatif.snapshot import Copied, copied

__all__ = ["Affected", "Answer", "Copied", "Fate", "Question", "ask", "copied"]
