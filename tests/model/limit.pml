/*
 * limit.pml: jobs of one type with a concurrency, and workers that start them (ADR 45).
 *
 * L1: never more than LIMIT handlers run at once whose leases hold. I1: places come back, so every job ends.
 * A worker takes a place in Redis, claims, starts, settles and releases; it may die between any two of these steps, or stand still
 * beyond its lease and go on. The rest of the protocol is job.pml's.
 *
 * Atomic: one SQL transaction, one Lua script, one reading of a clock. A hold ends when its process was not heard of for
 * worker.lease_s; its lease, less the margin, is over then. After a wipe nothing starts until each live process has named its holders
 * (SETTLE_MS): a process that stands still for longer has no lease that holds.
 */
#ifdef THREE             /* workers, jobs, and two places */
#define N 3
#define LIMIT 2
#else
#define N 2
#define LIMIT 1
#endif
#ifndef NKILL            /* workers killed; another process comes in their place */
#define NKILL 0
#endif
#ifndef NSTILL           /* workers that stand still beyond their lease */
#define NSTILL 0
#endif
#ifndef NWIPE            /* Redis loses all data */
#define NWIPE 0
#endif

/* ---- MySQL: status 0 pending, 1 running, 2 done; token: the number of the claim */
byte st[3], tok[3];
bit lost[3];             /* the lease is over */
/* ---- Redis: a holder is a job and the token of its claim: here the job and its worker */
#ifdef B_HOLDER_WITHOUT_TOKEN
#define H(w, j) (j)
#else
#define H(w, j) ((w) * 3 + (j))
#endif
bit hold[9];
bit orphan[9];           /* its process has died: nobody names it again */
bit settling;
/* ---- workers */
byte step[3];            /* 0 idle, 1 has a place, 2 claimed, 3 its handler runs, 4 releases */
byte cur[3], mine[3];
bit sure[3];             /* its own lease holds, by its own clock */
bit still[3];            /* it has stood still beyond its lease since it took its place */
bit named[3];            /* it has named its holders since the wipe */
byte last, nkill = NKILL, nstill = NSTILL, nwipe = NWIPE;
hidden byte I1, L1;

#define HELD (hold[0] + hold[1] + hold[2] + hold[3] + hold[4] + hold[5] + hold[6] + hold[7] + hold[8])
#define GOES(w) (step[w] == 3 && sure[w])
#define GOING (GOES(0) + GOES(1) + GOES(2))
#define OPEN(j) (j < N && (st[j] == 0 || (st[j] == 1 && lost[j])))
#define LEASED(w, j) (step[w] >= 2 && cur[w] == j && mine[w] == tok[j] && sure[w])
#define ENDS(j) (st[j] == 1 && !lost[j] && !LEASED(0, j) && !LEASED(1, j) && !LEASED(2, j))
#ifdef B_RELEASED_WHEN_SILENT    /* by the session of its process, as locks are, and not with its lease */
#define EXPIRES(w, j) (hold[H(w,j)] && (orphan[H(w,j)] || (cur[w] == j && step[w] == 3)))
#else
#define EXPIRES(w, j) (hold[H(w,j)] && (orphan[H(w,j)] || (cur[w] == j && still[w])))
#endif

inline take(w, j) {      /* limit_take.lua: one script counts the holders and adds one */
#ifndef B_TAKEN_AFTER_CLAIM
    hold[H(w,j)] = 1; orphan[H(w,j)] = 0;
#endif
    step[w] = 1; cur[w] = j
}
inline claim(w) {
    if
    :: OPEN(cur[w]) ->
        last++; st[cur[w]] = 1; tok[cur[w]] = last; lost[cur[w]] = 0; mine[w] = last;
        sure[w] = !still[w];     /* the lease is counted from before the pop */
        step[w] = 2
    :: else -> step[w] = 4       /* another one was faster */
    fi
}
inline start(w) {
    if
    :: sure[w] ->        /* attempt.py: enough of the lease is left */
#ifdef B_TAKEN_AFTER_CLAIM
        hold[H(w,cur[w])] = 1;
#endif
        step[w] = 3; assert(L1 || GOING <= LIMIT)
    :: else ->           /* given back under its token */
        if :: st[cur[w]] == 1 && tok[cur[w]] == mine[w] -> st[cur[w]] = 0 :: else fi; step[w] = 4
    fi
}
inline idle(w) { step[w] = 0; cur[w] = 0; mine[w] = 0; sure[w] = 0; still[w] = 0 }

proctype Worker(byte w) {
    do
    :: atomic { step[w] == 0 && !settling && HELD < LIMIT && OPEN(0) -> take(w, 0) }
    :: atomic { step[w] == 0 && !settling && HELD < LIMIT && OPEN(1) -> take(w, 1) }
    :: atomic { step[w] == 0 && !settling && HELD < LIMIT && OPEN(2) -> take(w, 2) }
    :: atomic { step[w] == 1 -> claim(w) }
    :: atomic { step[w] == 2 -> start(w) }
    :: atomic { step[w] == 3 ->          /* settled under its token */
        if :: st[cur[w]] == 1 && tok[cur[w]] == mine[w] -> st[cur[w]] = 2 :: else fi; step[w] = 4 }
    :: atomic { step[w] == 4 -> hold[H(w,cur[w])] = 0; orphan[H(w,cur[w])] = 0; idle(w) }
    /* ---- keeper.py: after a wipe each process writes its holders again */
    :: atomic { settling && !named[w] -> named[w] = 1;
        if :: step[w] != 0 && step[w] != 4 && !still[w] -> hold[H(w,cur[w])] = 1 :: else fi }
    /* ---- the world: its process dies, and another one comes; or it stands still */
    :: atomic { nkill > 0 && step[w] != 0 -> nkill--; orphan[H(w,cur[w])] = hold[H(w,cur[w])]; idle(w) }
    :: atomic { nstill > 0 && step[w] != 0 && !still[w] -> nstill--; still[w] = 1; sure[w] = 0 }
    od }

inline expire(w, j) { hold[H(w,j)] = 0; orphan[H(w,j)] = 0 }

proctype Time() {        /* leases end, and holds */
    byte k;
    do
    :: atomic { ENDS(0) -> lost[0] = 1 }
    :: atomic { ENDS(1) -> lost[1] = 1 }
    :: atomic { ENDS(2) -> lost[2] = 1 }
#ifndef B_NEVER_EXPIRES
    :: atomic { EXPIRES(0, 0) -> expire(0, 0) }
    :: atomic { EXPIRES(0, 1) -> expire(0, 1) }
    :: atomic { EXPIRES(0, 2) -> expire(0, 2) }
    :: atomic { EXPIRES(1, 0) -> expire(1, 0) }
    :: atomic { EXPIRES(1, 1) -> expire(1, 1) }
    :: atomic { EXPIRES(1, 2) -> expire(1, 2) }
    :: atomic { EXPIRES(2, 0) -> expire(2, 0) }
    :: atomic { EXPIRES(2, 1) -> expire(2, 1) }
    :: atomic { EXPIRES(2, 2) -> expire(2, 2) }
#endif
    /* Redis loses its data; until each process has named its holders, nothing starts (SETTLE_MS) */
    :: atomic { nwipe > 0 -> nwipe--;
        for (k : 0 .. 8) { hold[k] = 0; orphan[k] = 0 };
        for (k : 0 .. 2) { named[k] = (k >= N) };
        k = 0;
#ifndef B_NO_SETTLE_TIME
        settling = 1
#endif
        }
    :: atomic { settling && named[0] && named[1] && named[2] -> settling = 0 }
    od }

proctype NothingStuck() { timeout -> assert(I1 || (st[0] == 2 && st[1] == 2 && (N == 2 || st[2] == 2))) }

init { atomic { byte k; for (k : 0 .. N - 1) { run Worker(k) }; run Time(); run NothingStuck() } }
