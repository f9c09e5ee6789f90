"""The fault campaign: inject real faults into workers, servers and connections, and check every promise.

Every process that runs a task records what it does in its own file, with the clock of the host. The harness
records which processes it killed and when, and what the database answered to each request. A trigger in the
database, which is not part of the engine, keeps a ledger of every change of status. After a run the checker
reads these three sources and the tables, and reports every violated promise (checker.py: I1 to I12).

    python -m campaign --list
    python -m campaign kills crashes --dose short --seed 7
"""
