"""All runs of the models: the protocol as it is, with each kind of fault, and one guard broken at a time.

A broken variant is called like the simulation's of the same guard (tests/simulation/broken.py).
"""

from __future__ import annotations

from dataclasses import dataclass

JOB, POISON, RECURRING, LIMIT = MODELS = "job", "poison", "recurring", "limit"


@dataclass(frozen=True, slots=True)
class Variant:
    """One run. `broken`: the invariant that must be seen to break; "" when all must hold.

    `large`: only with `make test-all` (TOC_TEST_ALL=1).
    """

    name: str
    switches: str
    says: str
    broken: str = ""
    model: str = JOB
    large: bool = False


# ---- the protocol as it is. Without SCANNER the timer alone has to bring the job in its time.

HOLDS = (
    Variant(
        "no-fault",
        "CANCEL NRESCHED=1",
        "nothing fails; a cancel and a reschedule come at any moment",
    ),
    Variant("lease-ends", "NEXP=1 CANCEL", "a worker stands still, its lease ends, it goes on"),
    Variant(
        "worker-dies",
        "NCRASH=1 NEXP=1 SCANNER NO_LOADER",
        "between any two of its steps, and another stands still",
    ),
    Variant(
        "worker-dies-again-and-again",
        "COUNT_STARTS STARTS_MAX=2 MAXATT=1 NCRASH=3 SCANNER NO_LOADER",
        "attempts end, once more alone",
    ),
    Variant(
        "lease-renewed",
        "NRENEW=2 NEXP=1 NO_LOADER",
        "while the handler runs; its claim may be gone before, between the UPDATE and the read, and after",
    ),
    Variant(
        "lease-renewed-and-it-fails",
        "NRENEW=2 NEXP=1 NFAIL=1 NO_LOADER",
        "the same, and the handler raises an exception",
        large=True,
    ),
    Variant(
        "lease-renewed-and-it-dies",
        "NRENEW=1 NCRASH=1 NEXP=1 SCANNER NO_LOADER",
        "a renewal of a dead worker arrives late, too",
        large=True,
    ),
    Variant(
        "lease-renewed-it-ends",
        "LIVE NRENEW=1 NCRASH=1 SCANNER NO_LOADER",
        "I1 as liveness",
        large=True,
    ),
    Variant("handler-fails", "NFAIL=1 NSNOOZE=1 CANCEL", "an exception, a Snooze"),
    Variant("wipe", "NWIPE=1 NCRASH=1", "all of Redis is gone and a worker dies; no scanner"),
    Variant("wipe-and-loader-dies", "NWIPE=1 NLOADER=1 TMAX=3", "no scanner"),
    Variant("fail-over", "NFAILOVER=1", "to any older state of Redis; no scanner"),
    Variant("claims-answer-lost", "NLOST=1", "the batch is put back, though it may be claimed"),
    Variant("stay-over", "NSTAY=1 NFAIL=1", "a reminder comes back while its popper lives"),
    Variant("another-group-pops", "NSTRANGER=1", "a node without this handler pops and puts back"),
    Variant(
        "clocks-differ-by-slack",
        "SKEW=1 TMAX=3",
        "the client's clock is behind by as much as is allowed",
    ),
    Variant("client-dies", "SCANNER NCLIENT=1", "after its commit: the scanner has the job"),
    Variant("scanner-alone", "SCANNER NO_LOADER NCLIENT=1 NCRASH=1", "no loader, no reminder"),
    Variant(
        "redrive",
        "SCANNER NO_LOADER NREDRIVE=1 NFAIL=1 MAXATT=1",
        "a dead job lives again while its old ack is on the way",
        large=True,
    ),
    Variant(
        "discard",
        "SCANNER NO_LOADER NREDRIVE=1 DISCARD NFAIL=1 MAXATT=1",
        "a dead job is cancelled; a re-drive comes before or after it, or not at all",
    ),
    Variant(
        "discard-and-a-worker-dies",
        "SCANNER NO_LOADER NREDRIVE=1 DISCARD NCRASH=1 NEXP=1 NFAIL=1 MAXATT=1",
        "and its last run stands still, or dies, before or after the burial",
        large=True,
    ),
    Variant(
        "handler-asks-the-row",
        "PAUSE RECHECK NEXP=1 NFAIL=1 CANCEL NO_LOADER NO_I1=1",
        "status and token, in its own transaction: no hole is left",
    ),
    Variant(
        "once",
        "EFFECT ONCE NEXP=1 NFAIL=1 NCRASH=1 NO_LOADER NO_I1=1 NO_I2_STARTS=1",
        "its effect is there at most once",
    ),
    Variant(
        "it-ends",
        "LIVE SCANNER NO_LOADER NCRASH=1 NCLIENT=1",
        "I1 as liveness, under weak fairness",
    ),
    Variant("it-ends-without-scanner", "LIVE NWIPE=1", "the same", large=True),
    Variant("two-in-a-batch", "", "an innocent and a poison job, two processes", model=POISON),
    Variant(
        "two-in-a-batch-and-a-kill",
        "NKILL=1 MAXATT=1",
        "and a process is killed from outside",
        model=POISON,
        large=True,
    ),
    Variant(
        "three-attempts",
        "NKILL=1 MAXATT=3",
        "the same, with attempts that need no quiet",
        model=POISON,
        large=True,
    ),
    Variant(
        "no-quiet",
        "NHURRY=1 NKILL=1 MAXATT=1 ATT_MAX=3",
        "a worker that is never quiet runs a last attempt beside others",
        model=POISON,
        large=True,
    ),
    Variant(
        "poison-hangs-first",
        "HANGS NKILL=1 MAXATT=1 ATT_MAX=4",
        "beyond its timeout, and kills its process later",
        model=POISON,
    ),
    Variant(
        "two-databases",
        "TWO_LANES NKILL=1 MAXATT=1",
        "each job has a lane of its own, and they share the right to hold the process",
        model=POISON,
    ),
    Variant(
        "take-overs-answer-lost",
        "NLOST=1 MAXATT=1",
        "a last attempt is committed, nobody runs it, and it is given back",
        model=POISON,
    ),
    Variant(
        "take-overs-answer-lost-in-two-databases",
        "NLOST=1 TWO_LANES",
        "the same",
        model=POISON,
        large=True,
    ),
    Variant(
        "last-attempt-outlasts-the-hold",
        "NLONG=1 NKILL=1 MAXATT=1 ATT_MAX=3",
        "its token loses the mark, then the others go on beside it",
        model=POISON,
        large=True,
    ),
    Variant(
        "batchs-answer-lost",
        "NLOST_CLAIMS=1",
        "both jobs are claimed, and given back",
        model=POISON,
        large=True,
    ),
    Variant(
        "two-databases-three-attempts",
        "TWO_LANES NKILL=1 MAXATT=3",
        "with attempts that need no quiet",
        model=POISON,
        large=True,
    ),
    Variant(
        "worker-dies-by-the-timer", "NCRASH=1 NEXP=1", "worker-dies without a scanner", large=True
    ),
    Variant("fail-over-and-worker-dies", "NFAILOVER=1 NCRASH=1", "no scanner", large=True),
    Variant(
        "fail-over-and-back",
        "SCANNER NFAILOVER=2 AND_BACK",
        "within one tick of the loader: the scanner has the job",
        large=True,
    ),
    Variant(
        "two-loaders", "LOADERS=2 NWIPE=1", "overlap of owners, or deputies that load", large=True
    ),
    Variant(
        "two-reschedules",
        "NRESCHED=2",
        "two clients: reschedule, or schedule with replace",
        large=True,
    ),
    Variant(
        "client-dies-and-reschedule",
        "SCANNER NCLIENT=1 NRESCHED=1",
        "one client dies, another reschedules",
        large=True,
    ),
    Variant(
        "once-with-redis",
        "EFFECT ONCE NEXP=1 NCRASH=1 NO_I2_STARTS=1",
        "once, with loader and reminders",
        large=True,
    ),
    Variant(
        "three-processes",
        "NODES=3 NKILL=1 MAXATT=1",
        "two jobs, three processes",
        model=POISON,
        large=True,
    ),
    Variant(
        "chain-by-its-workers",
        "NKILL=2 NSTILL=1 NKEEPERS=0",
        "the settle alone makes the next occurrence, whoever dies",
        model=RECURRING,
    ),
    Variant(
        "chain-and-keepers",
        "NKILL=1 NSTILL=1 NEND=2 NREDRIVE=1",
        "jobs are cancelled, die with their leases, and are re-driven",
        model=RECURRING,
    ),
    Variant("limit-and-a-kill", "NKILL=1 NSTILL=1", "a worker dies, one stands still", model=LIMIT),
    Variant(
        "limit-and-a-wipe", "NWIPE=1 NKILL=1 NSTILL=1", "and Redis loses its data", model=LIMIT
    ),
    Variant("limit-of-two", "THREE NKILL=1", "three workers, three jobs, two places", model=LIMIT),
)

# ---- one guard left out or turned round

BROKEN = (
    Variant(
        "claim-without-status", "B_CLAIM_STATUS NSTAY=1", "a running row is claimed again", "I2"
    ),
    Variant(
        "claim-without-time",
        "B_CLAIM_TIME NRESCHED=1",
        "an old reminder fires a job that was moved to later",
        "I4",
    ),
    Variant(
        "settle-without-token",
        "B_SETTLE_TOKEN NEXP=1 NO_I2=1",
        "a stale worker settles what another runs",
        "I5",
    ),
    Variant(
        "start-without-lease-check",
        "B_START_LEASE NEXP=1",
        "a worker that stood still starts beside the new one",
        "I2",
    ),
    Variant(
        "start-without-lease-check-after-cancel",
        "B_START_LEASE NEXP=1 NFAIL=1 CANCEL NO_I2=1",
        'and after "cancelled"',
        "I3",
    ),
    Variant(
        "lease-counted-from-the-answer",
        "B_LEASE_FROM_ANSWER NEXP=1",
        "the row's lease ends before the worker's own",
        "I2",
    ),
    Variant(
        "cancel-without-status", "B_CANCEL_STATUS CANCEL", 'a running job is "cancelled"', "I3"
    ),
    Variant(
        "replace-without-status",
        "B_RESCHEDULE_STATUS NRESCHED=1",
        "a running job becomes pending",
        "I2",
    ),
    Variant(
        "redrive-without-status",
        "B_REDRIVE_STATUS NREDRIVE=1",
        "a running job becomes pending",
        "I2",
    ),
    Variant(
        "redrive-of-a-cancelled-job",
        "B_REDRIVE_CANCELLED SCANNER NO_LOADER NREDRIVE=1 DISCARD NFAIL=1 MAXATT=1",
        'it was discarded, and starts after "cancelled"',
        "I3",
    ),
    Variant(
        "discard-without-status",
        "B_DISCARD_STATUS DISCARD",
        'a running job is cancelled, and starts after "cancelled"',
        "I3",
    ),
    Variant("take-over-unguarded", "B_TAKE_OVER_BLIND NCRASH=1", "two find one suspect", "I2"),
    Variant(
        "take-over-without-lease",
        "B_TAKE_OVER_LEASE NRENEW=1 NEXP=1",
        "the lease was renewed since it was found over",
        "I2",
    ),
    Variant(
        "renewal-without-token",
        "B_RENEW_TOKEN NRENEW=1 NEXP=1",
        "the lease of another claim is made longer",
        "I5",
    ),
    Variant(
        "lost-without-an-answer",
        "B_LOST_UNREAD NRENEW=1",
        "a handler is told that its claim is lost, and it is not",
        "I5",
    ),
    Variant(
        "take-over-without-token",
        "B_TAKE_OVER_TOKEN MAXATT=1",
        "attempts of another claim are counted",
        "I7",
        POISON,
    ),
    Variant(
        "bury-without-token",
        "B_BURY_TOKEN EXTRA=0 MAXATT=1 NCRASH=2 NREDRIVE=1 NO_I1=1 NO_LOADER",
        "a later life is buried for the first one's lease",
        "I5",
    ),
    Variant("ack-before-settle", "B_ACK_FIRST NCRASH=1", "the worker dies in between", "I1"),
    Variant(
        "arm-before-commit",
        "B_ARM_BEFORE_COMMIT",
        "popped and forgotten before the row is there",
        "I1",
    ),
    Variant(
        "decide-before-commit",
        "B_DECIDE_BEFORE_COMMIT TMAX=3",
        "the loader passes between decision and commit",
        "I1",
    ),
    Variant(
        "mark-compared-outside",
        "B_MARK_OUTSIDE NWIPE=1",
        "a wipe between the look and the write",
        "I1",
    ),
    Variant(
        "missing-mark-is-a-value",
        "B_MARK_MISSING NWIPE=1",
        "still missing after a wipe in between",
        "I1",
    ),
    Variant(
        "mark-before-arms", "B_MARK_FIRST NLOADER=1 TMAX=3", "the loader dies in between", "I1"
    ),
    Variant(
        "mark-without-load-id",
        "B_LOAD_ID LOADERS=2 NWIPE=1",
        "a stopped loader's page fits a newer load",
        "I1",
    ),
    Variant(
        "time-after-snapshot",
        "B_TIME_AFTER TMAX=3",
        "the mark passes a row that the snapshot did not have",
        "I1",
    ),
    Variant(
        "slack-below-skew",
        "SLACK=0 SKEW=1",
        "client and loader each leave the job to the other",
        "I1",
    ),
    Variant(
        "fail-over-unseen",
        "B_RUN_ID NFAILOVER=1",
        "a client's reminder is lost and the mark stands",
        "I1",
    ),
    Variant(
        "loads-pending-only",
        "B_LOAD_PENDING NWIPE=1 NCRASH=1",
        "a running row's reminder is lost, then its worker",
        "I1",
    ),
    Variant(
        "scans-pending-only",
        "B_SCAN_PENDING SCANNER NO_LOADER NCRASH=1 NCLIENT=1",
        "a worker dies with a job that has no reminder",
        "I1",
    ),
    Variant(
        "popped-never-come-back", "B_NO_RETURN NCRASH=1", "a worker dies with a reminder", "I1"
    ),
    Variant(
        "latest-reminder-wins", "B_ARM_LATEST NRESCHED=1", "a late arm hides an earlier time", "I1"
    ),
    Variant(
        "count-in-redis",
        "B_COUNT_IN_REDIS COUNT_STARTS STARTS_MAX=2 MAXATT=1 NCRASH=3 NWIPE=1 NO_LOADER NO_I1=1",
        "a wipe un-counts attempts",
        "I7",
    ),
    Variant(
        "poison-not-alone", "B_NOT_ALONE", "lost jobs are claimed together again", "I7", POISON
    ),
    Variant(
        "dead-without-being-alone",
        "B_SHARED_COUNTS NKILL=1 MAXATT=1",
        "a shared lease counts as the last one",
        "I7",
        POISON,
    ),
    Variant(
        "alone-without-quiet",
        "B_NOT_QUIET NKILL=1 MAXATT=1",
        '":alone", beside others',
        "I7",
        POISON,
    ),
    Variant(
        "room-checked-once",
        "B_ROOM_CHECKED_ONCE NKILL=1 MAXATT=1",
        "a poller looks, the lane takes hold, the poller reserves",
        "I7",
        POISON,
    ),
    Variant(
        "quiet-in-another-order",
        "D_QUIET_ORDER NKILL=1 MAXATT=1",
        "what ends between two looks hides what runs",
        "I7",
        POISON,
    ),
    Variant(
        "hanging-is-quiet",
        "D_HANGING_IS_QUIET HANGS NKILL=1 MAXATT=1 ATT_MAX=4",
        '":alone", beside a handler that hangs and then kills',
        "I7",
        POISON,
    ),
    Variant(
        "take-over-without-give-back",
        "B_NO_GIVE_BACK NLOST=1",
        "its answer is lost, and the last attempt counts though nobody ran it",
        "I7",
        POISON,
    ),
    Variant(
        "take-over-given-back-as-pending",
        "B_UNDONE_TO_PENDING NLOST=1 MAXATT=1",
        "that its lease was lost is forgotten, and it shares a batch again",
        "I7",
        POISON,
    ),
    Variant(
        "not-held-until-given-back",
        "B_NOT_HELD_UNTIL_GIVEN_BACK NLOST=1",
        "the process dies of another job before it has given the take-over back",
        "I7",
        POISON,
    ),
    Variant(
        "buried-at-once",
        "B_BURIED_AT_ONCE NLOST=1",
        "another process buries what is about to be given back",
        "I7",
        POISON,
    ),
    Variant(
        "hold-ends-before-the-mark",
        "B_HOLD_ENDS_FIRST NLONG=1 NKILL=1 MAXATT=1 ATT_MAX=3",
        '":alone", beside others, since it ran for long',
        "I7",
        POISON,
    ),
    Variant(
        "lanes-do-not-look",
        "B_LANES_DO_NOT_LOOK TWO_LANES NKILL=1 MAXATT=3",
        "the lane of another database takes over beside what is called alone",
        "I7",
        POISON,
    ),
    Variant(
        "next-outside-of-the-settle",
        "B_NEXT_APART NKILL=1 NKEEPERS=0",
        "the worker dies between the two transactions",
        "I1",
        RECURRING,
    ),
    Variant(
        "occurrence-settled-without-token",
        "B_SETTLE_WITHOUT_TOKEN NSTILL=1",
        "a stale worker ends the occurrence that another runs",
        "I5",
        RECURRING,
    ),
    Variant(
        "any-job-continues-the-chain",
        "B_ANY_JOB_CONTINUES NSTILL=1 NKILL=1 NEND=1 NREDRIVE=1",
        "an occurrence that was re-driven makes a second next one",
        "I2",
        RECURRING,
    ),
    Variant(
        "keeper-believes-its-read",
        "B_KEEPER_BELIEVES_ITS_READ NEND=1",
        "two keepers find one chain that stands still",
        "I2",
        RECURRING,
    ),
    Variant(
        "place-taken-after-the-claim",
        "B_TAKEN_AFTER_CLAIM",
        "two find one free place",
        "L1",
        LIMIT,
    ),
    Variant(
        "place-released-when-silent",
        "B_RELEASED_WHEN_SILENT",
        "its process is not heard of for a moment, and its handler runs",
        "L1",
        LIMIT,
    ),
    Variant(
        "no-settle-time-after-a-wipe",
        "B_NO_SETTLE_TIME NWIPE=1",
        "a start before the holders are named again",
        "L1",
        LIMIT,
    ),
    Variant(
        "holder-without-token",
        "B_HOLDER_WITHOUT_TOKEN THREE",
        "who loses the claim frees the place of who won it",
        "L1",
        LIMIT,
    ),
    Variant(
        "places-never-expire",
        "B_NEVER_EXPIRES NKILL=1",
        "the place of a dead worker is lost",
        "I1",
        LIMIT,
    ),
)

# ---- designs that were given up, and what is not promised: the model must see these as well

KNOWN = (
    Variant(
        "reminder-only-if-absent",
        "D_ARM_ABSENT NRESCHED=1",
        "given up: ZADD NX; an earlier time is refused",
        "I1",
    ),
    Variant(
        "lease-not-in-the-row",
        "D_LEASE_ELSEWHERE NSTAY=1",
        "given up: who pops a running row takes it for lost",
        "I2",
    ),
    Variant(
        "settle-by-attempts",
        "D_SETTLE_BY_ATTEMPTS NRESCHED=1 NEXP=1 NFAIL=1 NO_I2=1",
        "given up: attempts begin anew with a reschedule",
        "I5",
    ),
    Variant(
        "pause-before-the-handler",
        "PAUSE NEXP=1",
        "not promised: a pause between lease check and first instruction",
        "I2",
    ),
    Variant(
        "pause-before-the-handler-after-cancel",
        "PAUSE NEXP=1 NFAIL=1 CANCEL NO_I2=1",
        "the same",
        "I3",
    ),
    Variant(
        "handler-asks-for-the-token-only",
        "PAUSE RECHECK_TOKEN MAXATT=1 NCRASH=1 NEXP=1 NREDRIVE=1 CANCEL NO_I1=1 NO_I2=1",
        "a buried row keeps its token: the status must be asked too",
        "I3",
    ),
    Variant(
        "effect-beside-the-settle",
        "EFFECT NCRASH=1 NO_LOADER NO_I1=1 NO_I2_STARTS=1",
        "not promised without once(): a crash between the two repeats it",
        "I2",
    ),
    Variant("client-dies-without-scanner", "NCLIENT=1", "why the scanner always runs", "I1"),
    Variant("client-dies-it-never-ends", "LIVE NCLIENT=1", "the same, as liveness", "I1"),
    Variant(
        "redrive-beside-an-ack",
        "NREDRIVE=1 NFAIL=1 MAXATT=1",
        "the reminder of a re-drive meets the ack of the last end: late, by the scanner's grace",
        "I1",
    ),
    Variant(
        "fail-over-and-back-without-scanner",
        "NFAILOVER=2 AND_BACK",
        "the first process is back before the loader looked: late, by the scanner's grace",
        "I1",
    ),
    Variant(
        "chain-without-keeper",
        "NEND=1 NKEEPERS=0",
        "why each node has a keeper: a person cancels the occurrence",
        "I1",
        RECURRING,
    ),
)

VARIANTS = HOLDS + BROKEN + KNOWN
