---- MODULE Lease ----
(* One task, several workers, a primary with an asynchronous standby that may take over at any time.

   A worker holds what it was told when it claimed: the number of the attempt and a nonce that is never used
   twice. The database accepts an outcome only from the lease it knows. A failover goes back to what the
   standby had, so numbers of attempts can be given out again; nonces cannot.

   FENCE says what the database compares: "both", "attempt" or "nothing". Only "both" is safe. *)
EXTENDS Naturals
CONSTANTS WORKERS, ATTEMPTS, NONCES, FAILOVERS, FENCE
VARIABLES db, standby, held, used, failovers, wrong

vars == <<db, standby, held, used, failovers, wrong>>
Nobody == [attempt |-> 0, nonce |-> 0]
Fresh == [state |-> "ready", attempt |-> 0, nonce |-> 0, expired |-> FALSE]

Init == /\ db = Fresh /\ standby = Fresh
        /\ held = [w \in WORKERS |-> Nobody]
        /\ used = 0 /\ failovers = 0 /\ wrong = FALSE

Free == db.state = "ready" \/ (db.state = "running" /\ db.expired)

Claim(w) == /\ held[w] = Nobody /\ Free /\ db.attempt < ATTEMPTS /\ used < NONCES
            /\ used' = used + 1
            /\ db' = [state |-> "running", attempt |-> db.attempt + 1, nonce |-> used + 1, expired |-> FALSE]
            /\ held' = [held EXCEPT ![w] = [attempt |-> db.attempt + 1, nonce |-> used + 1]]
            /\ UNCHANGED <<standby, failovers, wrong>>

Expire == /\ db.state = "running" /\ ~db.expired
          /\ db' = [db EXCEPT !.expired = TRUE]
          /\ UNCHANGED <<standby, held, used, failovers, wrong>>

Accepts(lease) == /\ db.state = "running"
                  /\ FENCE \in {"both", "attempt"} => lease.attempt = db.attempt
                  /\ FENCE = "both" => lease.nonce = db.nonce

(* `wrong` remembers that an outcome was accepted from a lease that is not the newest. *)
Finish(w) == /\ held[w] # Nobody
             /\ IF Accepts(held[w])
                THEN /\ db' = [db EXCEPT !.state = "done"]
                     /\ wrong' = (wrong \/ held[w].nonce # db.nonce)
                ELSE UNCHANGED <<db, wrong>>
             /\ held' = [held EXCEPT ![w] = Nobody]
             /\ UNCHANGED <<standby, used, failovers>>

Beat(w) == /\ held[w] # Nobody /\ Accepts(held[w]) /\ db.expired
           /\ db' = [db EXCEPT !.expired = FALSE]
           /\ wrong' = (wrong \/ held[w].nonce # db.nonce)
           /\ UNCHANGED <<standby, held, used, failovers>>

Copy == standby' = db /\ UNCHANGED <<db, held, used, failovers, wrong>>

Failover == /\ failovers < FAILOVERS /\ failovers' = failovers + 1
            /\ db' = standby
            /\ UNCHANGED <<standby, held, used, wrong>>

Next == Expire \/ Copy \/ Failover \/ \E w \in WORKERS : Claim(w) \/ Finish(w) \/ Beat(w)
Spec == Init /\ [][Next]_vars

NewestOnly == ~wrong
====
