/*
 * job.pml: one job's way through schedule, cancel, reschedule, re-drive, discard, load, pop, scan, claim, run and settle.
 *
 * Without switches it is the protocol as toc runs it. `B_…` leaves out or turns round one guard, `D_…` is a design that
 * was given up, `N… = n` is how often a fault may happen. variants.py has all runs, README.md what they mean.
 *
 * One atomic step is: one SQL transaction (or one statement that commits itself), one Lua script or Redis command, one
 * look at a clock. Between two steps of a process any other may move. Words are those of docs/explanation/design.md.
 *
 * Time: now = 0..TMAX; jobs are due at 1..3; horizon and slack are 1. A time above TMAX never comes: a reminder that
 * waits at 3 for a row that is due at 1 shows as a stuck state. So lateness becomes visible without a clock.
 */
#ifndef TMAX
#define TMAX 2
#endif
#ifndef SLACK
#define SLACK 1
#endif
#ifndef SKEW             /* the client's clock is so far behind Redis' */
#define SKEW 0
#endif
#ifndef MAXATT           /* max_attempts */
#define MAXATT 3
#endif
#ifndef EXTRA            /* EXTRA_MAX of suspects.py */
#define EXTRA 3
#endif
#ifndef STARTS_MAX       /* of one life; with COUNT_STARTS */
#define STARTS_MAX (MAXATT + EXTRA)
#endif
#ifndef NCRASH           /* a worker dies */
#define NCRASH 0
#endif
#ifndef NCLIENT          /* a client dies between its commit and its arm, or Redis refuses the arm for good */
#define NCLIENT 0
#endif
#ifndef NWIPE            /* Redis loses everything */
#define NWIPE 0
#endif
#ifndef NFAILOVER        /* Redis goes on with any older state of itself */
#define NFAILOVER 0
#endif
#ifndef NEXP             /* a lease becomes too short, and then ends, while its holder lives and goes on */
#define NEXP 0
#endif
#ifndef NSTAY            /* a stay in the PrepareQueue ends although its popper lives */
#define NSTAY 0
#endif
#ifndef NFAIL            /* a handler raises */
#define NFAIL 0
#endif
#ifndef NSNOOZE          /* a handler says Snooze */
#define NSNOOZE 0
#endif
#ifndef NLOST            /* a claim's answer is lost: the batch is put back, whatever was committed */
#define NLOST 0
#endif
#ifndef NLOADER          /* a loader dies */
#define NLOADER 0
#endif
#ifndef NRESCHED         /* clients that reschedule, or schedule with on_duplicate="replace" */
#define NRESCHED 0
#endif
#ifndef NREDRIVE
#define NREDRIVE 0
#endif
#ifndef NSTRANGER        /* pops by a node that has no handler of this type */
#define NSTRANGER 0
#endif
#ifndef NRENEW           /* renewals of a lease while the handler runs */
#define NRENEW 0
#endif
#ifndef LOADERS
#define LOADERS 1
#endif

#define HORIZON 1
#define NONE 9           /* no reminder */
#define LEASEAT 8        /* a reminder for the end of the row's lease, whenever that is */
#define MISS 9           /* no mark */

/* ---- MySQL: the row. Status 0 pending, 1 running, 2 done, 3 cancelled, 4 dead */
bit committed;
byte st, action, due, attempts;
byte worker;             /* the token of the last claim; 0: never claimed. It stays when the row is settled, as in the table */
bit alone;               /* that token ends in ":alone" */
byte lease;              /* 0 none, 1 holds, 2 over, by the database's clock */
/* ---- Redis: one slot */
byte store = NONE;       /* StoreQueue: due time of the reminder */
byte prep;               /* PrepareQueue: 0 not there, 1 out, 2 its stay is over */
byte mark = MISS, mark_id, mark_run;
byte run_id;             /* which server process this is */
#ifdef B_COUNT_IN_REDIS
byte count;
#endif
/* ---- Redis: the replica that lags */
byte rstore = NONE, rprep, rmark = MISS, rmark_id, rmark_run; bit rtaken;
/* ---- the world */
byte now;
bit calm;                /* faults have stopped */
byte ncrash = NCRASH, nclient = NCLIENT, nwipe = NWIPE, nfailover = NFAILOVER, nexp = NEXP, nstay = NSTAY, nfail = NFAIL,
     nsnooze = NSNOOZE, nlost = NLOST, nloader = NLOADER, nredrive = NREDRIVE, nstranger = NSTRANGER, nrenew = NRENEW;
/* ---- processes' own memory that others' steps have to see */
bit hold[3];             /* has it popped, and its stay is not looked at yet */
bit act[2];              /* has a claim of its own */
byte tok[2], seen[2];
bit late[2];             /* by its own monotonic clock too little of its lease is left */
#if NRENEW > 0
bit told_lost[2];        /* job.lost is set for the run of its token */
byte renewed[2];         /* the token under which a renewal is on its way */
#define BEING_RENEWED(t) (t == renewed[0] || t == renewed[1])
#else
#define BEING_RENEWED(t) false
#endif
byte w_id[LOADERS];      /* the load id that a loader works with */
/* ---- the invariants. An assert begins with the name of its own, so that a violation says which; NO_I2=1 looks away from I2 */
#ifndef NO_I1
#define NO_I1 0
#endif
#ifndef NO_I2
#define NO_I2 0
#endif
#ifndef NO_I3
#define NO_I3 0
#endif
hidden byte I1 = NO_I1, I2 = NO_I2, I3 = NO_I3, I4, I5, I7;
/* ---- ghosts: for the checks alone, nobody decides by them */
bit running[2], over[2], cancel_answered;
#ifdef EFFECT
byte effects;            /* rows that the handler has written in a transaction of its own */
#endif
#ifdef COUNT_STARTS
byte starts;             /* handler starts since the row's attempts were last set to 0 */
#endif

#ifdef COUNT_STARTS
#define NEW_LIFE starts = 0
#else
#define NEW_LIFE skip
#endif
#if defined(PAUSE) || defined(EFFECT) || defined(B_SETTLE_TOKEN) || NRENEW > 0
#define NOT_LOOKED_AT skip
#else                    /* a token stays in the row when it is settled; zeroed where nobody looks again: fewer states */
#define NOT_LOOKED_AT worker = 0; alone = 0; if :: st == 2 || st == 3 -> attempts = 0; action = 0; due = 0 :: else fi
#endif
#define FAULT(n) (n > 0 && !calm)
#define ENDED (st >= 2)
#define DUE_IN_STORE (store <= now || (store == LEASEAT && lease != 1))
#define NEAR(t) (t + SKEW <= now + HORIZON + SLACK)   /* decided by the client's clock */
#define EARLIEST(t) if :: store == NONE || t < store -> store = t :: else fi

inline arm(t) {          /* arm.lua; load_page.lua and put_back.lua have the same rule */
#if defined(B_ARM_LATEST)
    store = t
#elif defined(D_ARM_ABSENT)
    if :: store == NONE && prep == 0 -> store = t :: else fi
#else
    EARLIEST(t)
#endif
}
inline put_back(t) { prep = 0; arm(t) }
inline ack() { store = NONE; prep = 0 }

inline fresh_token(i) {  /* any token that stands for no other claim; the smallest, so that states are few */
    d_step { tok[i] = 1;
    do :: (tok[i] == worker || tok[i] == tok[1 - i] || tok[i] == seen[0] || tok[i] == seen[1] || BEING_RENEWED(tok[i])) -> tok[i]++
    :: else -> break od }
}

/* ---------------------------------------------------------------- clients */

#define CLIENT_DIES :: atomic { FAULT(nclient) -> nclient--; goto end }

proctype Client() { byte t; bit near;             /* center.py schedule(), arms.py place() */
#ifdef B_ARM_BEFORE_COMMIT
    if :: t = 1 :: t = 3 fi;
    if :: atomic { NEAR(t) -> arm(t) } :: atomic { !NEAR(t) -> skip } fi;
    atomic { committed = 1; action = t; due = t; goto end };
#endif
#ifdef B_DECIDE_BEFORE_COMMIT
    if :: atomic { t = 1; near = NEAR(t) } :: atomic { t = 3; near = NEAR(t) } fi;
    atomic { committed = 1; action = t; due = t };
#else
    if :: atomic { t = 1; committed = 1; action = t; due = t } :: atomic { t = 3; committed = 1; action = t; due = t } fi;
    if :: atomic { near = NEAR(t); if :: !near -> goto end :: else fi } CLIENT_DIES fi;
#endif
    if :: atomic { near -> arm(t) } :: !near CLIENT_DIES fi;
end: atomic { t = 0; near = 0 } }

proctype Canceller() {                            /* jobs.py cancel(): Redis is not told (ADR 15) */
    if
    :: atomic { committed ->
        if
#ifdef B_CANCEL_STATUS
        :: st < 2 -> st = 3; cancel_answered = 1; NOT_LOOKED_AT
#else
        :: st == 0 -> st = 3; cancel_answered = 1; NOT_LOOKED_AT
#endif
        :: else
        fi }
    :: calm
    fi }

proctype Rescheduler() { byte t;                  /* jobs.py reschedule(), and _on_live() for "replace" */
    if
    :: atomic { committed ->
        if :: t = 1 :: t = 2 :: t = 3 fi;
#ifdef B_RESCHEDULE_STATUS
        if :: st < 2 -> st = 0; action = t; due = t; attempts = 0; NEW_LIFE :: else -> goto end fi }
#else
        if :: st == 0 -> action = t; due = t; attempts = 0; NEW_LIFE :: else -> goto end fi }
#endif
    :: calm -> goto end
    fi;
    if :: atomic { !NEAR(t) -> goto end } :: atomic { NEAR(t) -> arm(t) } CLIENT_DIES fi;
end: t = 0 }

proctype Discarder() {                            /* jobs.py discard(): Redis is not told; a dead job has no reminder to keep */
    if
#ifdef B_DISCARD_STATUS
    :: atomic { (st == 1 || st == 4) -> st = 3; cancel_answered = 1; NOT_LOOKED_AT }
#else
    :: atomic { st == 4 -> st = 3; cancel_answered = 1; NOT_LOOKED_AT }
#endif
    :: calm
    fi }

proctype Admin() { byte t;                        /* jobs.py redrive() */
    do
#if defined(B_REDRIVE_STATUS)
    :: atomic { nredrive > 0 && (st == 1 || st == 4) ->
#elif defined(B_REDRIVE_CANCELLED)
    :: atomic { nredrive > 0 && (st == 3 || st == 4) ->
#else
    :: atomic { nredrive > 0 && st == 4 ->
#endif
        nredrive--; st = 0; action = now; due = now; t = now; attempts = 0; NEW_LIFE; lease = 0 };
       if :: atomic { true; arm(t) } :: atomic { FAULT(nclient) -> nclient-- } fi; t = 0
    :: calm -> break
    od }

/* ---------------------------------------------------------------- workers */

#define FORGET 1
#define LATER 2
#define SUSPECT 3
#define RUN 4
#define DONE 5
#define BURIED 6
#define BACK 7
#if NRENEW > 0
#define NOT_TOLD told_lost[i] = 0
#else
#define NOT_TOLD skip
#endif
#define REST NOT_TOLD; hold[i] = 0; act[i] = 0; running[i] = 0; late[i] = 0; over[i] = 0; tok[i] = 0; seen[i] = 0; \
             fate = 0; n = 0; t = 0; pop_time = 0; seen_alone = 0; goto idle
#define CRASH :: atomic { FAULT(ncrash) -> ncrash--; REST }

#ifdef B_CLAIM_STATUS
#define CLAIMABLE (st < 2)
#else
#define CLAIMABLE (st == 0)
#endif
#ifdef B_CLAIM_TIME
#define CLAIM_DUE true
#else
#define CLAIM_DUE (due <= pop_time)
#endif
#ifdef D_LEASE_ELSEWHERE /* the row says nothing about its lease: who pops a running row takes it for lost */
#define LEASE_OVER true
#else
#define LEASE_OVER (lease == 2)
#endif
#if defined(B_SETTLE_TOKEN)
#define MINE (st == 1)
#elif defined(D_SETTLE_BY_ATTEMPTS)
#define MINE (st == 1 && attempts == n)
#else
#define MINE (st == 1 && worker == tok[i])
#endif
#if defined(B_TAKE_OVER_BLIND)     /* neither token nor time */
#define STILL_LOST (st == 1)
#elif defined(B_TAKE_OVER_LEASE)   /* the lease is not looked at again: it may have been renewed */
#define STILL_LOST (st == 1 && worker == seen[i])
#else
#define STILL_LOST (st == 1 && worker == seen[i] && LEASE_OVER)
#endif
#if defined(B_BURY_TOKEN)
#define STILL_MINE_TO_BURY (st == 1 && LEASE_OVER)
#else
#define STILL_MINE_TO_BURY STILL_LOST
#endif
#ifdef B_SCAN_PENDING
#define OVERDUE (st == 0 && due <= now)
#else
#define OVERDUE ((st == 0 && due <= now) || (st == 1 && lease == 2))
#endif
#ifdef B_COUNT_IN_REDIS
#define COUNTED count
#else
#define COUNTED attempts
#endif

inline first_instruction(i) {
    assert(I3 || !cancel_answered);
    assert(I4 || st != 1 || now >= action);
#ifndef NO_I2_STARTS
    assert(I2 || !(running[1 - i] && !over[1 - i]));
    assert(I2 || st != 2);                                            /* not again after it was settled as done */
#endif
#ifdef COUNT_STARTS
    starts++; assert(I7 || starts <= STARTS_MAX);
#endif
    running[i] = 1
}

proctype Worker(byte i) { byte fate, n, t, pop_time; bit seen_alone;
idle: skip;
    do
    :: atomic { DUE_IN_STORE -> store = NONE; prep = 1; hold[i] = 1; pop_time = now; break }   /* pop.lua */
#ifdef SCANNER                    /* pages.py overdue(); it never arms, and answers no timer */
    :: atomic { committed && OVERDUE -> pop_time = now; break }
#endif
    od;
    if                            /* claims.py claim(): the UPDATE, committed */
    :: atomic { true; fresh_token(i);
        if :: committed && CLAIMABLE && CLAIM_DUE -> st = 1; worker = tok[i]; alone = 0; lease = 1; act[i] = 1; attempts++
#ifdef B_COUNT_IN_REDIS
            count++
#endif
        :: else fi;
        pop_time = 0 }
    CRASH
    fi;
    if                            /* claim(): the SELECT; fate.py */
    :: atomic { true;
        if
        :: !committed || ENDED -> fate = FORGET
        :: committed && st == 1 && worker == tok[i] -> fate = RUN; n = attempts
        :: committed && st == 1 && worker != tok[i] && LEASE_OVER -> fate = SUSPECT; seen[i] = worker; seen_alone = alone; n = COUNTED
        :: committed && st == 1 && worker != tok[i] && !(LEASE_OVER) -> fate = LATER; t = LEASEAT
        :: committed && st == 0 -> fate = LATER; t = (due > now -> due : now)
        fi;
        if :: fate != RUN -> tok[i] = 0; act[i] = 0 :: else fi }
    :: atomic { FAULT(nlost) -> nlost--; if :: hold[i] -> put_back(now) :: else fi; REST }  /* worker.py _put_back_all() */
    CRASH
    fi;
    if
    :: atomic { fate == FORGET -> if :: hold[i] -> ack() :: else fi; REST }
    :: atomic { fate == LATER -> if :: hold[i] -> put_back(t) :: else fi; REST }
    :: atomic { fate == SUSPECT -> hold[i] = 0;    /* its reminder stays out, and comes back when its stay is over */
        if                        /* suspects.py _handle() */
        :: n >= MAXATT + EXTRA || (n >= MAXATT && seen_alone) ->      /* claims.py bury_lost() */
            if :: STILL_MINE_TO_BURY ->
                assert(I5 || worker == seen[i]);
                st = 4; lease = 0; fate = BURIED :: else -> REST fi
        :: else ->                                                    /* claims.py take_over() */
            if :: STILL_LOST -> fresh_token(i); worker = tok[i]; alone = (n + 1 >= MAXATT); lease = 1; act[i] = 1; attempts++
#ifdef B_COUNT_IN_REDIS
                count++
#endif
            :: else -> REST fi
        fi; seen[i] = 0; seen_alone = 0 }
    :: fate == RUN
    CRASH
    fi;
    if
    :: fate == RUN
    :: atomic { fate == SUSPECT ->                                    /* the read after the take-over */
        if :: st == 1 && worker == tok[i] -> fate = RUN; n = attempts :: else -> REST fi }
    :: fate == BURIED -> goto tell
    CRASH
    fi;
    if                            /* worker.py _may_start() */
    :: atomic { !late[i] ->
#ifndef PAUSE
        first_instruction(i)
#endif
        }
    :: atomic { late[i] ->
#ifdef B_START_LEASE
        first_instruction(i)
#else                             /* given back unstarted; a stale give-back changes nothing */
        if :: MINE -> st = 0; due = (attempts == 1 -> action : now); t = due; attempts--; lease = 0; act[i] = 0; fate = BACK; NOT_LOOKED_AT; goto tell
        :: else -> REST fi
#endif
        }
    CRASH
    fi;
#ifdef PAUSE                      /* between the check and the handler's first instruction the process may stand still */
    if
#if defined(RECHECK)              /* the handler looks at the row inside its own transaction: status and token */
    :: atomic { st == 1 && worker == tok[i] -> first_instruction(i) }
    :: atomic { !(st == 1 && worker == tok[i]) -> skip }             /* it does nothing, and returns */
#elif defined(RECHECK_TOKEN)      /* the token alone: not enough */
    :: atomic { worker == tok[i] -> first_instruction(i) }
    :: atomic { worker != tok[i] -> skip }
#else
    :: atomic { true; first_instruction(i) }
#endif
    CRASH
    fi;
#endif
#ifdef EFFECT                     /* a handler that writes a row, and commits it */
    if
#ifdef ONCE                       /* once.py: the job's end in the same transaction */
    :: atomic { st == 1 && worker == tok[i] -> assert(I3 || !cancel_answered); st = 2; lease = 0; effects++; assert(I2 || effects == 1) }
    :: atomic { !(st == 1 && worker == tok[i]) -> skip }              /* done already, or ClaimLost: it writes nothing */
#else                             /* beside it: at least once is what is promised */
    :: atomic { true; effects++; assert(I2 || effects == 1) }
#endif
    CRASH
    fi;
#endif
#ifdef B_ACK_FIRST
    ack();
#endif
    if                            /* the handler's end, judge.py, claims.py settle(): one guarded statement */
    :: atomic { running[i] = 0;
        if
        :: fate = DONE
        :: FAULT(nfail) -> nfail--; fate = BACK
        :: FAULT(nsnooze) -> nsnooze--; fate = LATER
        fi;
#ifdef ONCE
        if :: st == 2 && worker == tok[i] -> fate = DONE; goto tell :: else fi;  /* as it would have left it: counts as settled */
#endif
        if
        :: !(MINE) -> REST                                            /* stale: it changes nothing and tells Redis nothing */
        :: MINE -> assert(I5 || worker == tok[i]);
            assert(I3 || !cancel_answered);                           /* nor an end after "cancelled" */
            lease = 0;
            if
            :: fate == DONE -> st = 2
            :: fate == BACK && n >= MAXATT -> st = 4; fate = BURIED
            :: fate == BACK && n < MAXATT -> st = 0; due = now; t = now
            :: fate == LATER -> st = 0; attempts--; if :: now < TMAX -> t = now + 1 :: else -> t = now fi;
                action = t; due = t; fate = BACK
            fi;
            NOT_LOOKED_AT
        fi;
        act[i] = 0; n = 0; late[i] = 0; over[i] = 0 }
    CRASH
    fi;
tell:
    if                            /* acks.py tell(): after the database, never before */
    :: atomic { fate == DONE || fate == BURIED -> ack(); REST }
    :: atomic { fate == BACK -> put_back(t); REST }
    CRASH
    fi }

#if NRENEW > 0                    /* renewal.py: beside the handler, one statement, then the read */
#if defined(B_RENEW_TOKEN)
#define RENEWABLE (st == 1)
#else
#define RENEWABLE (st == 1 && worker == renewed[i])
#endif
proctype Renewal(byte i) { bit gone;
again: renewed[i] = 0; gone = 0;
    do :: atomic { nrenew > 0 && running[i] -> nrenew--; renewed[i] = tok[i]; break } od;
    if                            /* the UPDATE, committed; the run may have ended since, or may have lost its claim */
    :: atomic { true;
        if
        :: RENEWABLE ->
            assert(I5 || worker == renewed[i]); lease = 1;
            /* the worker counts from before the question: its own lease is never the longer one */
            if :: tok[i] == renewed[i] -> late[i] = 0; over[i] = 0 :: else fi
        :: else
        fi }
    :: goto again                 /* it never arrives */
    fi;
    if                            /* the read */
    :: atomic { true; gone = !(st == 1 && worker == renewed[i]) }
#ifdef B_LOST_UNREAD              /* no answer counts as the loss of the claim */
    :: atomic { true; gone = 1 }
#else
    :: goto again                 /* its answer is lost: nothing is known */
#endif
    fi;
    atomic { if
        :: gone && running[i] && tok[i] == renewed[i] ->
            assert(I5 || !(st == 1 && worker == renewed[i])); told_lost[i] = 1
        :: else fi };
    goto again }
#endif

proctype Stranger() { byte t;                     /* a node of another group: it has no handler of this type (ADR 7) */
again: do :: atomic { nstranger > 0 && DUE_IN_STORE -> nstranger--; store = NONE; prep = 1; hold[2] = 1; break } od;
    if
    :: atomic { !committed || ENDED -> t = NONE }
    :: atomic { committed && st == 0 -> t = (due > now -> due : now) }
    :: atomic { committed && st == 1 -> t = (lease == 2 -> now : LEASEAT) }
    fi;
    if :: atomic { t == NONE -> ack() } :: atomic { t != NONE -> put_back(t) } fi;
    hold[2] = 0; t = 0; goto again }

/* ---------------------------------------------------------------- the loader */

#define LOADER_DIES :: atomic { FAULT(nloader) -> nloader--; LREST }
#define LREST seen_row = 0; w = 0; w_run = 0; w_id[k] = 0; u = 0; t = 0; r = 0; goto again
#ifdef B_RUN_ID
#define OTHER_RUN(a, b) false
#else
#define OTHER_RUN(a, b) (a != b)
#endif
#define MARK_IS_MINE (mark == w && mark_run == w_run && mark_id == w_id[k])

inline fresh_load_id() { d_step { w_id[k] = 1;
#ifdef B_LOAD_ID
    skip
#else
    do :: w_id[k] == mark_id || w_id[k] == rmark_id || (LOADERS == 2 && w_id[k] == w_id[(k + 1) % LOADERS]) -> w_id[k]++ :: else -> break od
#endif
    } }

inline snapshot() {      /* pages.py due_after(): live rows, running ones too, behind the mark */
    if
    :: committed && st == 0 && (w == MISS || w == 0 || w < due) && due <= u -> seen_row = 1; t = due
#ifndef B_LOAD_PENDING
    :: committed && st == 1 && (w == MISS || w == 0 || w < due) && due <= u -> seen_row = 1; t = LEASEAT
#endif
    :: else
    fi }

proctype Loader(byte k) { byte w, w_run, u, t, r; bit seen_row;
again: skip;
    atomic { (mark == MISS || OTHER_RUN(mark_run, run_id) || mark < now + HORIZON) ->      /* slots.marks() */
        w = mark; w_run = mark_run; w_id[k] = mark_id };
    atomic { r = run_id; u = now + HORIZON };     /* slots.run_ids(), then TIME: before the snapshot */
    if                            /* the mark counts as lost: a fresh one BEFORE the snapshot. A blind write */
    :: atomic { (w == MISS || OTHER_RUN(w_run, r)) ->
#if !defined(B_MARK_MISSING)
        fresh_load_id(); w = 0; w_run = r; mark = 0; mark_run = r; mark_id = w_id[k]
#endif
        }
    :: !(w == MISS || OTHER_RUN(w_run, r))
    LOADER_DIES
    fi;
    if :: atomic { true; snapshot() } LOADER_DIES fi;
#ifdef B_TIME_AFTER
    atomic { u = now + HORIZON };
#endif
#if defined(B_MARK_FIRST)
    if :: atomic { MARK_IS_MINE -> mark = u } :: atomic { !MARK_IS_MINE -> LREST } LOADER_DIES fi;
    if :: atomic { true; if :: seen_row -> arm(t) :: else fi; LREST } LOADER_DIES fi
#elif defined(B_MARK_OUTSIDE)     /* compared by the loader, then written */
    if :: MARK_IS_MINE :: atomic { !MARK_IS_MINE -> LREST } LOADER_DIES fi;
    if :: atomic { true; mark = u; mark_run = w_run; mark_id = w_id[k]; if :: seen_row -> arm(t) :: else fi; LREST } LOADER_DIES fi
#else                             /* load_page.lua: only while the mark is what was read, page and mark together */
    if :: atomic { true; if :: MARK_IS_MINE -> mark = u; if :: seen_row -> arm(t) :: else fi :: else fi; LREST } LOADER_DIES fi
#endif
}

/* ---------------------------------------------------------------- the world */

/* pop.lua gives back what has stayed too long, at the time of that pop */
proctype Stays() {
#ifdef B_NO_RETURN
    skip
#else
    do :: atomic { prep == 2 -> prep = 0; arm(now) } od
#endif
}

#define HELD(i) (act[i] && tok[i] == worker)

proctype Time() {
    do
    :: atomic { now < TMAX -> now++ }
    :: atomic { prep == 1 && !hold[0] && !hold[1] && !hold[2] -> prep = 2 }
    :: atomic { prep == 1 && FAULT(nstay) -> nstay--; prep = 2 }
    :: atomic { prep == 1 && lease == 2 -> prep = 2 }
    :: atomic { st == 1 && lease == 1 && !HELD(0) && !HELD(1) -> lease = 2 }
       /* a holder's own clock, counted from before the pop, less a margin, comes before the row's */
#ifdef B_LEASE_FROM_ANSWER
    :: atomic { st == 1 && lease == 1 && HELD(0) && FAULT(nexp) -> nexp--; lease = 2; over[0] = 1 }
    :: atomic { st == 1 && lease == 1 && HELD(1) && FAULT(nexp) -> nexp--; lease = 2; over[1] = 1 }
#endif
    :: atomic { act[0] && !late[0] && FAULT(nexp) -> nexp--; late[0] = 1 }
    :: atomic { act[1] && !late[1] && FAULT(nexp) -> nexp--; late[1] = 1 }
    :: atomic { st == 1 && lease == 1 && HELD(0) && late[0] -> lease = 2; over[0] = 1 }
    :: atomic { st == 1 && lease == 1 && HELD(1) && late[1] -> lease = 2; over[1] = 1 }
    od }

#define FORGET_REPLICA rtaken = 0; rstore = NONE; rprep = 0; rmark = MISS; rmark_id = 0; rmark_run = 0

proctype Faults() {
    do
    :: atomic { FAULT(nwipe) -> nwipe--; store = NONE; prep = 0; mark = MISS; mark_id = 0; mark_run = 0;
#ifdef B_COUNT_IN_REDIS
        count = 0
#endif
        }
    :: atomic { FAULT(nfailover) && !rtaken -> rtaken = 1; rstore = store; rprep = (prep > 0 -> 1 : 0); rmark = mark; rmark_id = mark_id; rmark_run = mark_run }
    :: atomic { FAULT(nfailover) && rtaken -> nfailover--; store = rstore; prep = rprep; mark = rmark; mark_id = rmark_id; mark_run = rmark_run;
#ifdef AND_BACK                   /* the second fail-over brings the first process back */
        run_id = 1 - run_id;
#else
        run_id++;
#endif
        FORGET_REPLICA }
    :: atomic { calm = 1; FORGET_REPLICA; break }
    od }

proctype NothingStuck() {         /* I1: when nothing more can happen, a job whose time has come has ended */
    timeout -> assert(I1 || (committed && (ENDED || due > TMAX))) }

init { atomic {
    run Client(); run Worker(0); run Worker(1); run Stays(); run Time(); run Faults();
#if NRENEW > 0
    run Renewal(0); run Renewal(1);
#endif
#ifdef CANCEL
    run Canceller();
#endif
#ifdef DISCARD
    run Discarder();
#endif
#ifndef NO_LOADER
    run Loader(0);
    if :: LOADERS == 2 -> run Loader(LOADERS - 1) :: else fi;
#endif
    if :: NRESCHED >= 1 -> run Rescheduler() :: else fi;
    if :: NRESCHED >= 2 -> run Rescheduler() :: else fi;
    if :: NREDRIVE >= 1 -> run Admin() :: else fi;
    if :: NSTRANGER >= 1 -> run Stranger() :: else fi;
#ifndef LIVE
    run NothingStuck()
#endif
    } }

#ifdef LIVE                       /* I1 under weak fairness: once faults have stopped, it ends */
ltl i1 { []( (committed && calm) -> <>(ENDED || due > TMAX) ) }
#endif
