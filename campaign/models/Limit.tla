---- MODULE Limit ----
(* A limit of how many tasks of a key run at once, kept as a counter beside the leases.

   A lease may end twice in the eyes of the world: it runs out, and its worker comes late with an outcome.
   FENCED says whether the late one is recognised. The counter must equal the live leases at every instant. *)
EXTENDS Naturals, FiniteSets
CONSTANTS TASKS, MAX, FENCED
VARIABLES state, running, late

vars == <<state, running, late>>
Live == {t \in TASKS : state[t] = "running"}

Init == state = [t \in TASKS |-> "ready"] /\ running = 0 /\ late = {}

Claim(t) == /\ state[t] = "ready" /\ running < MAX
            /\ state' = [state EXCEPT ![t] = "running"]
            /\ running' = running + 1
            /\ UNCHANGED late

Finish(t) == /\ state[t] = "running"
             /\ state' = [state EXCEPT ![t] = "done"]
             /\ running' = running - 1
             /\ UNCHANGED late

(* The lease ran out: the task is ready again, and somewhere a worker does not know it yet. *)
Reap(t) == /\ state[t] = "running"
           /\ state' = [state EXCEPT ![t] = "ready"]
           /\ running' = running - 1
           /\ late' = late \cup {t}

FinishLate(t) == /\ t \in late
                 /\ late' = late \ {t}
                 /\ IF FENCED
                    THEN UNCHANGED <<state, running>>
                    ELSE /\ state' = [state EXCEPT ![t] = "done"]
                         /\ running' = IF running > 0 THEN running - 1 ELSE 0

Next == \E t \in TASKS : Claim(t) \/ Finish(t) \/ Reap(t) \/ FinishLate(t)
Spec == Init /\ [][Next]_vars

Exact == running = Cardinality(Live)
Held == Cardinality(Live) <= MAX
====
