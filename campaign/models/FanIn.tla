---- MODULE FanIn ----
(* Parents that end at the same time, and a child that must be released exactly once, after the last.

   Each parent's transaction marks its own edge and then looks whether any edge is left. LOCKS says whether it
   takes the child's row first: without that, two parents may both miss each other's mark, or both release. *)
EXTENDS Naturals, FiniteSets
CONSTANTS PARENTS, LOCKS
VARIABLES at, seen, marked, committed, owner, releases

vars == <<at, seen, marked, committed, owner, releases>>
None == "none"

Init == /\ at = [p \in PARENTS |-> "working"]
        /\ seen = [p \in PARENTS |-> {}]
        /\ marked = {} /\ committed = {} /\ owner = None /\ releases = 0

Lock(p) == /\ at[p] = "working"
           /\ IF LOCKS THEN owner = None /\ owner' = p ELSE UNCHANGED owner
           /\ at' = [at EXCEPT ![p] = "locked"]
           /\ UNCHANGED <<seen, marked, committed, releases>>

(* Sees what others have committed, and its own mark. *)
Mark(p) == /\ at[p] = "locked"
           /\ marked' = marked \cup {p}
           /\ seen' = [seen EXCEPT ![p] = committed \cup {p}]
           /\ at' = [at EXCEPT ![p] = "marked"]
           /\ UNCHANGED <<committed, owner, releases>>

Commit(p) == /\ at[p] = "marked"
             /\ committed' = committed \cup {p}
             /\ releases' = IF seen[p] = PARENTS THEN releases + 1 ELSE releases
             /\ owner' = IF owner = p THEN None ELSE owner
             /\ at' = [at EXCEPT ![p] = "over"]
             /\ UNCHANGED <<seen, marked>>

Crash(p) == /\ at[p] \in {"locked", "marked"}
            /\ at' = [at EXCEPT ![p] = "working"]
            /\ marked' = marked \ {p}
            /\ owner' = IF owner = p THEN None ELSE owner
            /\ UNCHANGED <<seen, committed, releases>>

Next == \E p \in PARENTS : Lock(p) \/ Mark(p) \/ Commit(p) \/ Crash(p)
Spec == Init /\ [][Next]_vars

AtMostOnce == releases <= 1
NotEarly == releases > 0 => committed = PARENTS
NotForgotten == committed = PARENTS => releases = 1
====
