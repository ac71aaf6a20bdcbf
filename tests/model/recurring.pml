/*
 * recurring.pml: a recurring schedule, its chain of jobs, two workers and two keepers (ADR 46).
 *
 * I1: the chain goes on: when nothing more can happen, each nominal time had its job, and that has ended.
 * I2: one occurrence lives at a time, and a nominal time has one job. I5: a settle has the row's token.
 * A worker may die between any two steps, or stand still until its lease is over and another has taken over its job; a job may end
 * without a worker (cancelled by a person, or dead with its lease) and be re-driven. The rest of the protocol is job.pml's.
 *
 * Atomic: one SQL transaction, or one plain read.
 */
#ifndef TIMES            /* nominal times */
#define TIMES 3
#endif
#ifndef NKILL            /* workers that die */
#define NKILL 0
#endif
#ifndef NSTILL           /* workers that stand still beyond their lease */
#define NSTILL 0
#endif
#ifndef NEND             /* jobs that end without a worker */
#define NEND 0
#endif
#ifndef NREDRIVE         /* of these are re-driven */
#define NREDRIVE 0
#endif
#ifndef NKEEPERS
#define NKEEPERS 2
#endif

/* ---- MySQL. Jobs by their nominal time, from 1. Status 0 none, 1 pending, 2 running, 3 ended, 4 dead */
byte st[5], tok[5], made[5];
bit lost[5];             /* the lease is over */
bit aside[5];            /* re-driven: it lives beside the chain */
byte newest;             /* the schedule's row: the job that it names, which says how far it is */
/* ---- workers */
byte step[2];            /* 0 idle, 1 claimed, 2 its handler has returned, 3 settled without the next one */
byte cur[2], mine[2];
/* ---- keepers */
byte seen[2];            /* the newest job that it read, which had ended; 0: none */
byte last, nkill = NKILL, nstill = NSTILL, nend = NEND, nredrive = NREDRIVE;
hidden byte I1, I2, I5;

#define LIVES(j) ((st[j] == 1 || st[j] == 2) && !aside[j])
#define LIVING (LIVES(1) + LIVES(2) + LIVES(3) + LIVES(4))
#define WORKS(w, j) (step[w] != 0 && step[w] != 3 && cur[w] == j && mine[w] == tok[j])
#define ENDED(j) (st[j] == 3 || st[j] == 4)

inline make_next() {     /* recurring_chains.py make_next(), under the lock of the row */
    if
    :: newest < TIMES ->
        newest++; made[newest]++; st[newest] = 1;
        assert(I2 || (made[newest] == 1 && LIVING <= 1))
    :: else
    fi
}
inline settle(w) {
    if
#ifdef B_SETTLE_WITHOUT_TOKEN
    :: st[cur[w]] == 2 ->
#else
    :: st[cur[w]] == 2 && tok[cur[w]] == mine[w] ->
#endif
        assert(I5 || tok[cur[w]] == mine[w]);
        st[cur[w]] = 3; aside[cur[w]] = 0;
#ifdef B_NEXT_APART
        step[w] = 3
#else
        continue_chain(w)
#endif
    :: else -> idle(w)   /* its claim is gone */
    fi
}
inline continue_chain(w) {
#ifdef B_ANY_JOB_CONTINUES
    make_next();
#else
    if :: newest == cur[w] -> make_next() :: else fi;
#endif
    idle(w)
}
inline idle(w) { step[w] = 0; cur[w] = 0; mine[w] = 0 }

#define CLAIMABLE(j) (st[j] == 1 || (st[j] == 2 && lost[j]))
inline claim(w, j) { last++; st[j] = 2; tok[j] = last; lost[j] = 0; step[w] = 1; cur[w] = j; mine[w] = last }

proctype Worker(byte w) {
    do
    :: atomic { step[w] == 0 && CLAIMABLE(1) -> claim(w, 1) }
    :: atomic { step[w] == 0 && CLAIMABLE(2) -> claim(w, 2) }
    :: atomic { step[w] == 0 && CLAIMABLE(3) -> claim(w, 3) }
    :: atomic { step[w] == 1 -> step[w] = 2 }
    :: atomic { step[w] == 2 -> settle(w) }
#ifdef B_NEXT_APART
    :: atomic { step[w] == 3 -> continue_chain(w) }
#endif
    :: atomic { nkill > 0 && step[w] != 0 -> nkill--;
        if :: WORKS(w, cur[w]) && st[cur[w]] == 2 -> lost[cur[w]] = 1 :: else fi; idle(w) }
    :: atomic { nstill > 0 && (step[w] == 1 || step[w] == 2) && WORKS(w, cur[w]) && st[cur[w]] == 2 -> nstill--; lost[cur[w]] = 1 }
    od }

proctype Keeper(byte k) {        /* keep_chain(): a plain read, then the locks */
    do
    :: atomic { seen[k] == 0 && newest < TIMES && ENDED(newest) -> seen[k] = newest }
    :: atomic { seen[k] != 0 ->
#ifdef B_KEEPER_BELIEVES_ITS_READ
        make_next();
#else
        if :: newest == seen[k] && ENDED(newest) -> make_next() :: else fi;
#endif
        seen[k] = 0 }
    od }

proctype World() {
    do
    :: atomic { nend > 0 && LIVES(newest) && st[newest] == 1 -> nend--; st[newest] = 3 }
    :: atomic { nend > 0 && LIVES(newest) && st[newest] == 2 && lost[newest] -> nend--; st[newest] = 4 }
    :: atomic { nredrive > 0 && st[1] == 4 -> nredrive--; st[1] = 1; aside[1] = (newest != 1); lost[1] = 0 }
    :: atomic { nredrive > 0 && st[2] == 4 -> nredrive--; st[2] = 1; aside[2] = (newest != 2); lost[2] = 0 }
    od }

proctype NothingStuck() { timeout -> assert(I1 || (newest == TIMES && ENDED(1) && ENDED(2) && ENDED(3))) }

init { atomic {
    newest = 1; st[1] = 1; made[1] = 1;
    run Worker(0); run Worker(1);
#if NKEEPERS > 0
    run Keeper(0); run Keeper(1);
#endif
    run World(); run NothingStuck() } }
