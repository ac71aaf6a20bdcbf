/*
 * poison.pml: two jobs and NODES worker processes. Job 0 is innocent. Job 1 is poison: it kills its process each time.
 *
 * I7: the innocent one ends done; the poison one ends dead, after a bounded number of attempts. The rest of the
 * protocol is job.pml's; here Redis and the scanner are one thing that may offer any live row to any process at any
 * time, which is more than they do. A process has a poller that claims batches, a thread for each job, a settler, and
 * the lane of suspects (toc/worker/suspects.py). When it dies all of it is gone, and the leases of its rows end.
 *
 * Atomic: one SQL transaction, one look at one variable of the process (another thread may come between any two).
 * A token is a number that is never given out again; attempts may shrink, by a give-back.
 *
 * TWO_LANES: each job is in a database of its own, and each database has its own lane in each process.
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
#ifndef NLONG            /* last attempts that outlast HOLD_S_MAX */
#define NLONG 0
#endif
#ifndef NLOST            /* take-overs that are committed, and whose answer is lost */
#define NLOST 0
#endif
#ifndef NLOST_CLAIMS     /* the same of batches */
#define NLOST_CLAIMS 0
#endif
#ifdef TWO_LANES
#define LANES 2
#else
#define LANES 1
#endif

#define Q 0
#define P 1

/* ---- MySQL: two rows. Status 0 pending, 1 running, 2 done, 4 dead */
bit here[2];             /* scheduled, and due */
byte st[2], att[2], tok[2];
byte last[2];            /* tokens given out */
bit lost[2];             /* the lease is over */
bit alone[2];            /* the token ends in ":alone" */
bit nobody[2];           /* claimed, and the process does not know: its answer was lost */
/* ---- each process: its jobs in flight. row = process * 2 + job */
#define AT(n, j) ((n) * 2 + (j))
byte job[NODES * 2];     /* 0 not here, 1 in the pool's queue, 2 its handler runs, 3 ended, to be settled, 4 settled, still counted in flight, 5 hangs */
byte mine[NODES * 2];    /* the token it was claimed under; 0: none */
/* ---- the poller */
byte poller[NODES];
bit reserved[NODES];
bit took[NODES * 2];     /* claimed by this batch */
/* ---- the lanes. row = process * 2 + lane */
byte lane[NODES * 2];    /* 0 idle, 1 waits for quiet, 2..5 looks, 20 21 reserves, 6 takes over, 7 reads, 8 waits until it is settled, 12 until it is given back */
byte cur[NODES * 2];     /* the suspect that it handles */
byte held[NODES];        /* lane + 1: which of them holds the process; 0: none */
bit quietly[NODES * 2];
bit promised[NODES * 2]; /* a take-over is under way that is not alone */
byte see[NODES * 2];     /* suspects: the token seen; 0: none */
byte see_att[NODES * 2];
bit see_alone[NODES * 2];
byte saw_a[NODES * 2], saw_b[NODES * 2];        /* what the looks of `quiet` found so far */
/* ---- the settler: give-backs of claims whose answer was lost */
byte doubt[NODES * 2];   /* the token that the row may have; 0: none */
byte doubt_tok[NODES * 2];       /* the token that it was taken over from; 0: it was pending */
bit doubt_alone[NODES * 2];
/* ---- the world */
byte nkill = NKILL, nhurry = NHURRY, nlong = NLONG, nlost = NLOST, nlost_claims = NLOST_CLAIMS;
hidden byte I7;

#define IN_FLIGHT(n) ((job[AT(n,0)] != 0) + (job[AT(n,1)] != 0))
#define SETTLING(n) ((job[AT(n,0)] == 3) + (job[AT(n,1)] == 3))
#define HANGING(n) ((job[AT(n,0)] == 5) + (job[AT(n,1)] == 5))
#define HAS(n, j) (st[j] == 1 && (mine[AT(n,j)] == tok[j] || doubt[AT(n,j)] == tok[j]))
#define RUNS_ALONE(n) ((alone[0] && HAS(n, 0)) || (alone[1] && HAS(n, 1)))
#define NEWS(n, j) (here[j] && (st[j] == 0 || (st[j] == 1 && lost[j] && see[AT(n,j)] == 0)))
#define MY(n, l) AT(n, cur[AT(n,l)])
#define LEFT(n, l) (MAXATT - see_att[MY(n,l)])
#define BUSY(n) (reserved[n] + promised[AT(n,0)] + promised[AT(n,1)])
#if NODES == 3
#define IN_DOUBT(j) (doubt[AT(0,j)] == tok[j] || doubt[AT(1,j)] == tok[j] || doubt[AT(2,j)] == tok[j])
#else
#define IN_DOUBT(j) (doubt[AT(0,j)] == tok[j] || doubt[AT(1,j)] == tok[j])
#endif

inline gone(n, j) {      /* the process has died: the row waits for its lease to end */
    if :: HAS(n, j) -> lost[j] = 1; nobody[j] = 0 :: else fi;
    job[AT(n,j)] = 0; mine[AT(n,j)] = 0; took[AT(n,j)] = 0; see[AT(n,j)] = 0; see_att[AT(n,j)] = 0; see_alone[AT(n,j)] = 0;
    doubt[AT(n,j)] = 0; doubt_tok[AT(n,j)] = 0; doubt_alone[AT(n,j)] = 0;
    lane[AT(n,j)] = 0; cur[AT(n,j)] = 0; quietly[AT(n,j)] = 0; promised[AT(n,j)] = 0; saw_a[AT(n,j)] = 0; saw_b[AT(n,j)] = 0
}
inline die(n) { gone(n, 0); gone(n, 1); poller[n] = 0; reserved[n] = 0; held[n] = 0 }
inline counted(j) { att[j]++; last[j]++; tok[j] = last[j]; lost[j] = 0; nobody[j] = 0; assert(I7 || j != P || att[j] <= ATT_MAX) }
inline claim(n, j) {     /* claims.py claim() */
    if
    :: here[j] && st[j] == 0 -> st[j] = 1; alone[j] = 0; counted(j); mine[AT(n,j)] = tok[j]; took[AT(n,j)] = 1
#ifdef B_NOT_ALONE       /* what is lost is claimed with the rest of its batch, and dead when its attempts are used up */
    :: here[j] && st[j] == 1 && lost[j] && att[j] >= MAXATT -> st[j] = 4; assert(I7 || j == P)
    :: here[j] && st[j] == 1 && lost[j] && att[j] < MAXATT -> counted(j); mine[AT(n,j)] = tok[j]; took[AT(n,j)] = 1
#endif
    :: else
    fi
}
inline sort_out(n, j) {  /* the read after the commit, worker.py _sort_out() */
    if
    :: took[AT(n,j)] -> took[AT(n,j)] = 0; job[AT(n,j)] = 1
    :: !took[AT(n,j)] && here[j] && st[j] == 1 && lost[j] && see[AT(n,j)] == 0 && mine[AT(n,j)] != tok[j] ->
        see[AT(n,j)] = tok[j]; see_att[AT(n,j)] = att[j]; see_alone[AT(n,j)] = alone[j]
    :: else
    fi
}
inline unanswered(n, j) { /* worker.py: the answer of a claim is lost, and the settler is to give it back */
    if :: took[AT(n,j)] -> took[AT(n,j)] = 0; mine[AT(n,j)] = 0; doubt[AT(n,j)] = tok[j]; nobody[j] = 1 :: else fi
}
inline give_back(n, j) { /* claims.py settle(): GIVE_BACK, and UNDO of a take-over */
    if
    :: st[j] == 1 && tok[j] == doubt[AT(n,j)] && doubt_tok[AT(n,j)] == 0 -> st[j] = 0; att[j]--; lost[j] = 0; nobody[j] = 0
    :: st[j] == 1 && tok[j] == doubt[AT(n,j)] && doubt_tok[AT(n,j)] != 0 ->
#ifdef B_UNDONE_TO_PENDING
        st[j] = 0; att[j]--; lost[j] = 0; nobody[j] = 0
#else
        tok[j] = doubt_tok[AT(n,j)]; alone[j] = doubt_alone[AT(n,j)]; att[j]--; lost[j] = 1; nobody[j] = 0
#endif
    :: else
    fi;
    doubt[AT(n,j)] = 0; doubt_tok[AT(n,j)] = 0; doubt_alone[AT(n,j)] = 0
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
        if :: st[j] == 1 && mine[AT(n,j)] == tok[j] -> st[j] = 2 :: else fi
    :: job[AT(n,j)] == 4 -> job[AT(n,j)] = 0; mine[AT(n,j)] = 0       /* _released() */
    fi
}

inline suspects(n, l) {  /* one step of the lane of suspects, suspects.py */
    if
    :: lane[AT(n,l)] == 0 && see[AT(n,l)] != 0 -> cur[AT(n,l)] = l; lane[AT(n,l)] = 10
#ifndef TWO_LANES
    :: lane[AT(n,l)] == 0 && see[AT(n,1)] != 0 -> cur[AT(n,l)] = 1; lane[AT(n,l)] = 10
#endif
    :: lane[AT(n,l)] == 10 &&
#ifdef B_SHARED_COUNTS   /* a lease that was lost beside others counts as much as one that was lost alone */
        LEFT(n,l) <= 0 -> lane[AT(n,l)] = 9
    :: lane[AT(n,l)] == 10 && LEFT(n,l) > 0 -> lane[AT(n,l)] = 20
#else
        (LEFT(n,l) <= -EXTRA || (LEFT(n,l) <= 0 && see_alone[MY(n,l)])) -> lane[AT(n,l)] = 9
    :: lane[AT(n,l)] == 10 && LEFT(n,l) > -EXTRA && !(LEFT(n,l) <= 0 && see_alone[MY(n,l)]) && LEFT(n,l) <= 1 && held[n] == 0 ->
        quietly[AT(n,l)] = 1; held[n] = l + 1; lane[AT(n,l)] = 1
    :: lane[AT(n,l)] == 10 && LEFT(n,l) > 1 -> lane[AT(n,l)] = 20
#endif
#if defined(B_NOT_QUIET)          /* ":alone" without having waited for it */
    :: lane[AT(n,l)] == 1 -> lane[AT(n,l)] = 6
#elif defined(D_QUIET_ORDER)      /* ended, then in flight, then reserved, then hanging */
    :: lane[AT(n,l)] == 1 -> saw_b[AT(n,l)] = SETTLING(n); lane[AT(n,l)] = 2
    :: lane[AT(n,l)] == 2 -> saw_a[AT(n,l)] = IN_FLIGHT(n); lane[AT(n,l)] = 3
    :: lane[AT(n,l)] == 3 -> saw_a[AT(n,l)] = saw_a[AT(n,l)] + BUSY(n); lane[AT(n,l)] = 4
    :: lane[AT(n,l)] == 4 -> lane[AT(n,l)] = (saw_a[AT(n,l)] <= saw_b[AT(n,l)] + HANGING(n) -> 6 : 1); saw_a[AT(n,l)] = 0; saw_b[AT(n,l)] = 0
#else                             /* worker.py quiet: what may only grow into the next is looked at first */
    :: lane[AT(n,l)] == 1 && BUSY(n) == 0 -> lane[AT(n,l)] = 2
    :: lane[AT(n,l)] == 2 -> saw_a[AT(n,l)] = IN_FLIGHT(n); lane[AT(n,l)] = 3
    :: lane[AT(n,l)] == 3 -> saw_b[AT(n,l)] = SETTLING(n); lane[AT(n,l)] = 4
    :: lane[AT(n,l)] == 4 -> lane[AT(n,l)] = (saw_a[AT(n,l)] <= saw_b[AT(n,l)] + HANGING(n) -> 5 : 1); saw_a[AT(n,l)] = 0; saw_b[AT(n,l)] = 0
#ifdef D_HANGING_IS_QUIET         /* beside a handler that hangs, and that may yet end the process */
    :: lane[AT(n,l)] == 5 -> lane[AT(n,l)] = 6
#else
    :: lane[AT(n,l)] == 5 -> quietly[AT(n,l)] = (HANGING(n) == 0); lane[AT(n,l)] = 6
#endif
#endif
    :: lane[AT(n,l)] == 1 && nhurry > 0 -> nhurry--; quietly[AT(n,l)] = 0; held[n] = 0; lane[AT(n,l)] = 20
    /* beside the others: not while another lane holds the process. Reserved first, then looked at, as in take_room() */
    :: lane[AT(n,l)] == 20 -> promised[AT(n,l)] = 1; lane[AT(n,l)] = 21
#ifdef B_LANES_DO_NOT_LOOK
    :: lane[AT(n,l)] == 21 -> lane[AT(n,l)] = 6
#else
    :: lane[AT(n,l)] == 21 -> if :: held[n] != 0 -> promised[AT(n,l)] = 0; lane[AT(n,l)] = 11 :: else -> lane[AT(n,l)] = 6 fi
#endif
    :: lane[AT(n,l)] == 6 ->   /* claims.py take_over() */
        if
#ifdef B_TAKE_OVER_TOKEN
        :: st[cur[AT(n,l)]] == 1 && lost[cur[AT(n,l)]] ->
#else
        :: st[cur[AT(n,l)]] == 1 && lost[cur[AT(n,l)]] && tok[cur[AT(n,l)]] == see[MY(n,l)] ->
#endif
            doubt_tok[MY(n,l)] = see[MY(n,l)]; doubt_alone[MY(n,l)] = see_alone[MY(n,l)];
            alone[cur[AT(n,l)]] = quietly[AT(n,l)]; counted(cur[AT(n,l)]); mine[MY(n,l)] = tok[cur[AT(n,l)]]; lane[AT(n,l)] = 7
        :: else -> promised[AT(n,l)] = 0; lane[AT(n,l)] = 11
        fi
    :: lane[AT(n,l)] == 7 -> doubt_tok[MY(n,l)] = 0; doubt_alone[MY(n,l)] = 0; job[MY(n,l)] = 1; lane[AT(n,l)] = 23
    :: lane[AT(n,l)] == 7 && nlost > 0 ->  /* committed, and its answer is lost */
        nlost--; mine[MY(n,l)] = 0; nobody[cur[AT(n,l)]] = 1; promised[AT(n,l)] = 0;
#ifdef B_NO_GIVE_BACK
        doubt_tok[MY(n,l)] = 0; doubt_alone[MY(n,l)] = 0; lane[AT(n,l)] = 11
#else
        doubt[MY(n,l)] = tok[cur[AT(n,l)]];
#ifdef B_NOT_HELD_UNTIL_GIVEN_BACK
        lane[AT(n,l)] = 11
#else
        lane[AT(n,l)] = 12
#endif
#endif
    :: lane[AT(n,l)] == 12 && doubt[MY(n,l)] == 0 -> lane[AT(n,l)] = 11
    :: lane[AT(n,l)] == 23 -> promised[AT(n,l)] = 0; lane[AT(n,l)] = 8
    /* HOLD_S_MAX is over, and it still runs: first the row, then the process */
    :: lane[AT(n,l)] == 8 && held[n] == l + 1 && nlong > 0 -> nlong--; lane[AT(n,l)] = 13
    :: lane[AT(n,l)] == 13 ->  /* claims.py share() */
#ifndef B_HOLD_ENDS_FIRST
        if :: st[cur[AT(n,l)]] == 1 && tok[cur[AT(n,l)]] == mine[MY(n,l)] -> alone[cur[AT(n,l)]] = 0 :: else fi;
#endif
        lane[AT(n,l)] = 14
    :: lane[AT(n,l)] == 14 -> held[n] = 0; lane[AT(n,l)] = 8
    :: lane[AT(n,l)] == 8 && (job[MY(n,l)] == 0 || job[MY(n,l)] == 5) -> lane[AT(n,l)] = 11    /* settled, or it hangs beyond its lease */
#ifdef B_BURIED_AT_ONCE
    :: lane[AT(n,l)] == 9 ->   /* claims.py bury_lost() */
#else
    :: lane[AT(n,l)] == 9 && !IN_DOUBT(cur[AT(n,l)]) ->   /* claims.py bury_lost(), BURY_AFTER_S later */
#endif
        if
        :: st[cur[AT(n,l)]] == 1 && lost[cur[AT(n,l)]] && tok[cur[AT(n,l)]] == see[MY(n,l)] -> st[cur[AT(n,l)]] = 4; assert(I7 || cur[AT(n,l)] == P)
        :: else
        fi; lane[AT(n,l)] = 11
    :: lane[AT(n,l)] == 11 ->
        if :: held[n] == l + 1 -> held[n] = 0 :: else fi;
        quietly[AT(n,l)] = 0; see[MY(n,l)] = 0; see_att[MY(n,l)] = 0; see_alone[MY(n,l)] = 0; cur[AT(n,l)] = 0; lane[AT(n,l)] = 0
    fi
}

proctype Node(byte n) {
    do
    /* ---- the poller (and the scanner: the same sink). worker.py take_room(), offer() */
    :: atomic { poller[n] == 0 && held[n] == 0 && (NEWS(n,0) || NEWS(n,1)) -> poller[n] = 1 }
#ifdef B_ROOM_CHECKED_ONCE
    :: atomic { poller[n] == 1 -> reserved[n] = 1; poller[n] = 3 }
#else
    :: atomic { poller[n] == 1 -> reserved[n] = 1; poller[n] = 2 }
    :: atomic { poller[n] == 2 -> if :: held[n] != 0 -> reserved[n] = 0; poller[n] = 0 :: else -> poller[n] = 3 fi }
#endif
    :: atomic { poller[n] == 3 -> claim(n, 0); claim(n, 1); poller[n] = 4 }
    :: atomic { poller[n] == 4 && nlost_claims > 0 && (took[AT(n,0)] || took[AT(n,1)]) -> nlost_claims--; unanswered(n, 0); unanswered(n, 1); poller[n] = 5 }
    :: atomic { poller[n] == 4 -> sort_out(n, 0); sort_out(n, 1); poller[n] = 5 }
    :: atomic { poller[n] == 5 -> reserved[n] = 0; poller[n] = 0 }
    /* ---- handlers and settler */
    :: atomic { job[AT(n,0)] != 0 -> handler(n, 0) }
    :: atomic { job[AT(n,1)] != 0 -> handler(n, 1) }
    :: atomic { doubt[AT(n,0)] != 0 -> give_back(n, 0) }
    :: atomic { doubt[AT(n,1)] != 0 -> give_back(n, 1) }
    /* ---- the lanes of suspects */
    :: atomic { suspects(n, 0) }
#ifdef TWO_LANES
    :: atomic { suspects(n, 1) }
#endif
    /* ---- the world */
    :: atomic { nkill > 0 && !RUNS_ALONE(n) -> nkill--; die(n) }
    :: atomic { nobody[0] && !lost[0] -> lost[0] = 1 }   /* its lease ends */
    :: atomic { nobody[1] && !lost[1] -> lost[1] = 1 }
    od }

proctype Client() { atomic { !here[0] -> here[0] = 1 } }
proctype Poisoner() { atomic { !here[1] -> here[1] = 1 } }

proctype NothingStuck() { timeout -> assert(I7 || (st[Q] == 2 && st[P] == 4)) }

init { atomic { byte k; for (k : 0 .. NODES - 1) { run Node(k) }; run Client(); run Poisoner(); run NothingStuck() } }
