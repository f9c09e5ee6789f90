"""The fault campaign: break workers, servers and connections for real, and let an independent checker judge.

Every process that runs a task writes what it does into a file of its own, with the clock of the host. The
harness writes whom it killed and when, and what the database answered to each request. A trigger in the
database, which is no part of the engine, keeps a ledger of every change of state. After a run the checker
reads these three and the tables, and looks for anything that breaks a promise (checker.py: I1 to I12).

    python -m campaign --list
    python -m campaign kills crashes --dose short --seed 7
"""
