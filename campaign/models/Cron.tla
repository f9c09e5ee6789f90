---- MODULE Cron ----
(* Several workers tick one schedule. Each reads when it is due, and submits a job and moves the schedule on in one
   transaction. COMPARES says whether the move is conditional on the time it read; without it a tick fires twice. *)
EXTENDS Naturals
CONSTANTS WORKERS, LAST, COMPARES
VARIABLES now, due, read, fired

vars == <<now, due, read, fired>>
Nothing == 0

Init == now = 0 /\ due = 1 /\ read = [w \in WORKERS |-> Nothing] /\ fired = [t \in 1..LAST |-> 0]

Pass == now < LAST /\ now' = now + 1 /\ UNCHANGED <<due, read, fired>>

Read(w) == /\ read[w] = Nothing /\ due <= now /\ due <= LAST
           /\ read' = [read EXCEPT ![w] = due]
           /\ UNCHANGED <<now, due, fired>>

(* Missed ticks are run as one: the schedule moves past the present. *)
Fire(w) == /\ read[w] # Nothing
           /\ IF ~COMPARES \/ due = read[w]
              THEN /\ fired' = [fired EXCEPT ![read[w]] = @ + 1]
                   /\ due' = now + 1
              ELSE UNCHANGED <<fired, due>>
           /\ read' = [read EXCEPT ![w] = Nothing]
           /\ UNCHANGED now

Die(w) == read[w] # Nothing /\ read' = [read EXCEPT ![w] = Nothing] /\ UNCHANGED <<now, due, fired>>

Next == Pass \/ \E w \in WORKERS : Read(w) \/ Fire(w) \/ Die(w)
Spec == Init /\ [][Next]_vars

Once == \A t \in 1..LAST : fired[t] <= 1
====
