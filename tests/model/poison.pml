/*
 * poison.pml: two jobs and NODES worker processes. Job 0 is innocent. Job 1 is poison: it kills its process each time.
 *
 * I7: the innocent one ends done; the poison one ends dead, after a bounded number of attempts. The rest of the
 * protocol is job.pml's; here Redis and the scanner are one thing that may offer any live row to any process at any
 * time, which is more than they do. A process has a poller that claims batches, a thread for each job, a settler, and
 * the lane of suspects (toc/worker/suspects.py). When it dies all of it is gone, and the leases of its rows end.
 *
 * Atomic: one SQL transaction, one look at one variable of the process (another thread may come between any two).
 * A token is told apart by the row's attempts, which here only grow.
 */
#ifndef NODES
#define NODES 2
#endif
#ifndef MAXATT           /* max_attempts of both */
#define MAXATT 2
#endif
#ifndef EXTRA            /* EXTRA_MAX of suspects.py */
#define EXTRA 3
#endif
#ifndef ATT_MAX          /* more attempts than this the poison job must never have */
#define ATT_MAX (MAXATT + 1)
#endif
#ifndef NKILL            /* processes killed from outside, not while they run a last attempt */
#define NKILL 0
#endif
#ifndef NHURRY           /* last attempts that find no quiet, and run beside the others */
#define NHURRY 0
#endif

#define Q 0
#define P 1

/* ---- MySQL: two rows. Status 0 pending, 1 running, 2 done, 4 dead */
bit here[2];             /* scheduled, and due */
byte st[2], att[2];
bit lost[2];             /* the lease is over */
bit alone[2];            /* the token ends in ":alone" */
/* ---- each process: its jobs in flight. row = process * 2 + job */
#define AT(n, j) ((n) * 2 + (j))
byte job[NODES * 2];     /* 0 not here, 1 in the pool's queue, 2 its handler runs, 3 ended, to be settled, 4 settled, still counted in flight, 5 hangs */
byte mine[NODES * 2];    /* the token it was claimed under; 0: none */
/* ---- the poller */
byte poller[NODES];
bit reserved[NODES];
bit took[NODES * 2];     /* claimed by this batch */
/* ---- the lane */
byte lane[NODES];        /* 0 idle, 1 waits for quiet, 2..5 looks, 6 takes over, 7 reads, 8 waits until it is settled */
byte cur[NODES];         /* the suspect that it handles */
bit held[NODES], quietly[NODES];
byte see[NODES * 2];     /* suspects: the token seen; 0: none */
bit see_alone[NODES * 2];
byte saw_a[NODES], saw_b[NODES];        /* what the looks of `quiet` found so far */
/* ---- the world */
byte nkill = NKILL, nhurry = NHURRY;
hidden byte I7;

#define IN_FLIGHT(n) ((job[AT(n,0)] != 0) + (job[AT(n,1)] != 0))
#define SETTLING(n) ((job[AT(n,0)] == 3) + (job[AT(n,1)] == 3))
#define HANGING(n) ((job[AT(n,0)] == 5) + (job[AT(n,1)] == 5))
#define RUNS_ALONE(n) ((st[0] == 1 && alone[0] && mine[AT(n,0)] == att[0]) || (st[1] == 1 && alone[1] && mine[AT(n,1)] == att[1]))
#define NEWS(n, j) (here[j] && (st[j] == 0 || (st[j] == 1 && lost[j] && see[AT(n,j)] == 0)))
#define LEFT(n) (MAXATT - see[AT(n,cur[n])])

inline gone(n, j) {      /* the process has died: the row waits for its lease to end */
    if :: st[j] == 1 && mine[AT(n,j)] == att[j] -> lost[j] = 1 :: else fi;
    job[AT(n,j)] = 0; mine[AT(n,j)] = 0; took[AT(n,j)] = 0; see[AT(n,j)] = 0; see_alone[AT(n,j)] = 0
}
inline die(n) {
    gone(n, 0); gone(n, 1);
    poller[n] = 0; reserved[n] = 0; lane[n] = 0; cur[n] = 0; held[n] = 0; quietly[n] = 0; saw_a[n] = 0; saw_b[n] = 0
}
inline counted(j) { att[j]++; assert(I7 || j != P || att[j] <= ATT_MAX) }
inline claim(n, j) {     /* claims.py claim() */
    if
    :: here[j] && st[j] == 0 -> st[j] = 1; lost[j] = 0; alone[j] = 0; counted(j); mine[AT(n,j)] = att[j]; took[AT(n,j)] = 1
#ifdef B_NOT_ALONE       /* what is lost is claimed with the rest of its batch, and dead when its attempts are used up */
    :: here[j] && st[j] == 1 && lost[j] && att[j] >= MAXATT -> st[j] = 4; assert(I7 || j == P)
    :: here[j] && st[j] == 1 && lost[j] && att[j] < MAXATT -> lost[j] = 0; counted(j); mine[AT(n,j)] = att[j]; took[AT(n,j)] = 1
#endif
    :: else
    fi
}
inline sort_out(n, j) {  /* the read after the commit, worker.py _sort_out() */
    if
    :: took[AT(n,j)] -> took[AT(n,j)] = 0; job[AT(n,j)] = 1
    :: !took[AT(n,j)] && here[j] && st[j] == 1 && lost[j] && see[AT(n,j)] == 0 && mine[AT(n,j)] != att[j] ->
        see[AT(n,j)] = att[j]; see_alone[AT(n,j)] = alone[j]
    :: else
    fi
}
inline handler(n, j) {   /* a thread of the pool, and the settler */
    if
    :: job[AT(n,j)] == 1 -> job[AT(n,j)] = 2
    :: job[AT(n,j)] == 2 && j == Q -> job[AT(n,j)] = 3
#ifdef HANGS
    :: job[AT(n,j)] == 2 && j == P -> job[AT(n,j)] = 5                /* beyond its timeout: counted as stuck */
    :: job[AT(n,j)] == 5 && j == P -> die(n)
#else
    :: job[AT(n,j)] == 2 && j == P -> die(n)
#endif
    :: job[AT(n,j)] == 3 -> job[AT(n,j)] = 4;                         /* settle(): the UPDATE under its token, the batch is empty again */
        if :: st[j] == 1 && mine[AT(n,j)] == att[j] -> st[j] = 2 :: else fi
    :: job[AT(n,j)] == 4 -> job[AT(n,j)] = 0; mine[AT(n,j)] = 0       /* _released() */
    fi
}

proctype Node(byte n) {
    do
    /* ---- the poller (and the scanner: the same sink). worker.py take_room(), offer() */
    :: atomic { poller[n] == 0 && !held[n] && (NEWS(n,0) || NEWS(n,1)) -> poller[n] = 1 }
#ifdef B_ROOM_CHECKED_ONCE
    :: atomic { poller[n] == 1 -> reserved[n] = 1; poller[n] = 3 }
#else
    :: atomic { poller[n] == 1 -> reserved[n] = 1; poller[n] = 2 }
    :: atomic { poller[n] == 2 -> if :: held[n] -> reserved[n] = 0; poller[n] = 0 :: else -> poller[n] = 3 fi }
#endif
    :: atomic { poller[n] == 3 -> claim(n, 0); claim(n, 1); poller[n] = 4 }
    :: atomic { poller[n] == 4 -> sort_out(n, 0); sort_out(n, 1); poller[n] = 5 }
    :: atomic { poller[n] == 5 -> reserved[n] = 0; poller[n] = 0 }
    /* ---- handlers and settler */
    :: atomic { job[AT(n,0)] != 0 -> handler(n, 0) }
    :: atomic { job[AT(n,1)] != 0 -> handler(n, 1) }
    /* ---- the lane of suspects */
    :: atomic { lane[n] == 0 && see[AT(n,0)] != 0 -> cur[n] = 0; lane[n] = 10 }
    :: atomic { lane[n] == 0 && see[AT(n,1)] != 0 -> cur[n] = 1; lane[n] = 10 }
    :: atomic { lane[n] == 10 ->
        if
#ifdef B_SHARED_COUNTS   /* a lease that was lost beside others counts as much as one that was lost alone */
        :: LEFT(n) <= 0 -> lane[n] = 9
        :: LEFT(n) > 0 -> lane[n] = 6
#else
        :: LEFT(n) <= -EXTRA || (LEFT(n) <= 0 && see_alone[AT(n,cur[n])]) -> lane[n] = 9
        :: LEFT(n) > -EXTRA && !(LEFT(n) <= 0 && see_alone[AT(n,cur[n])]) && LEFT(n) <= 1 -> quietly[n] = 1; held[n] = 1; lane[n] = 1
        :: LEFT(n) > 1 -> lane[n] = 6
#endif
        fi }
#if defined(B_NOT_QUIET)          /* ":alone" without having waited for it */
    :: atomic { lane[n] == 1 -> lane[n] = 6 }
#elif defined(D_QUIET_ORDER)      /* ended, then in flight, then reserved, then hanging */
    :: atomic { lane[n] == 1 -> saw_b[n] = SETTLING(n); lane[n] = 2 }
    :: atomic { lane[n] == 2 -> saw_a[n] = IN_FLIGHT(n); lane[n] = 3 }
    :: atomic { lane[n] == 3 -> saw_a[n] = saw_a[n] + reserved[n]; lane[n] = 4 }
    :: atomic { lane[n] == 4 -> if :: saw_a[n] <= saw_b[n] + HANGING(n) -> lane[n] = 6 :: else -> lane[n] = 1 fi; saw_a[n] = 0; saw_b[n] = 0 }
#else                             /* worker.py quiet: what may only grow into the next is looked at first */
    :: atomic { lane[n] == 1 && reserved[n] == 0 -> lane[n] = 2 }
    :: atomic { lane[n] == 2 -> saw_a[n] = IN_FLIGHT(n); lane[n] = 3 }
    :: atomic { lane[n] == 3 -> saw_b[n] = SETTLING(n); lane[n] = 4 }
    :: atomic { lane[n] == 4 -> if :: saw_a[n] <= saw_b[n] + HANGING(n) -> lane[n] = 5 :: else -> lane[n] = 1 fi; saw_a[n] = 0; saw_b[n] = 0 }
#ifdef D_HANGING_IS_QUIET         /* beside a handler that hangs, and that may yet end the process */
    :: atomic { lane[n] == 5 -> lane[n] = 6 }
#else
    :: atomic { lane[n] == 5 -> quietly[n] = (HANGING(n) == 0); lane[n] = 6 }
#endif
#endif
    :: atomic { lane[n] == 1 && nhurry > 0 -> nhurry--; quietly[n] = 0; held[n] = 0; lane[n] = 6 }
    :: atomic { lane[n] == 6 ->   /* claims.py take_over() */
        if
#ifdef B_TAKE_OVER_TOKEN
        :: st[cur[n]] == 1 && lost[cur[n]] ->
#else
        :: st[cur[n]] == 1 && lost[cur[n]] && att[cur[n]] == see[AT(n,cur[n])] ->
#endif
            lost[cur[n]] = 0; alone[cur[n]] = quietly[n]; counted(cur[n]); mine[AT(n,cur[n])] = att[cur[n]]; lane[n] = 7
        :: else -> lane[n] = 11
        fi }
    :: atomic { lane[n] == 7 -> job[AT(n,cur[n])] = 1; lane[n] = 8 }
    :: atomic { lane[n] == 8 && (job[AT(n,cur[n])] == 0 || job[AT(n,cur[n])] == 5) -> lane[n] = 11 }    /* settled, or it hangs beyond its lease */
    :: atomic { lane[n] == 9 ->   /* claims.py bury_lost() */
        if
        :: st[cur[n]] == 1 && lost[cur[n]] && att[cur[n]] == see[AT(n,cur[n])] -> st[cur[n]] = 4; assert(I7 || cur[n] == P)
        :: else
        fi; lane[n] = 11 }
    :: atomic { lane[n] == 11 -> held[n] = 0; quietly[n] = 0; see[AT(n,cur[n])] = 0; see_alone[AT(n,cur[n])] = 0; cur[n] = 0; lane[n] = 0 }
    /* ---- the world */
    :: atomic { nkill > 0 && !RUNS_ALONE(n) -> nkill--; die(n) }
    od }

proctype Client() { atomic { !here[0] -> here[0] = 1 } }
proctype Poisoner() { atomic { !here[1] -> here[1] = 1 } }

proctype NothingStuck() { timeout -> assert(I7 || (st[Q] == 2 && st[P] == 4)) }

init { atomic { byte k; for (k : 0 .. NODES - 1) { run Node(k) }; run Client(); run Poisoner(); run NothingStuck() } }
