"""What is done to the rig. Each fault breaks something, holds it so, heals it, and says whom it hit.

A fault that hits NOBODY explains no duplicate: all of Redis and ZooKeeper may go, and every clock of
a worker may be wrong, and no handler may start twice for it.
"""

from __future__ import annotations

import random
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from sqlalchemy import delete

from tests.chaos.plan import NOBODY, TYPES
from tests.chaos.world import Host, World, saved_by
from tests.reliability.wire import Wire
from tests.servers import Server
from tests.servers.zookeeper import foreign_members
from tests.worker.waiting import wait_until
from toc.domain.job import Status
from toc.errors import StoreUnavailable
from toc.node.probes import TICK_S
from toc.timer.redis_keys import store_queue_key

EVERYBODY: Sequence[str] = ()
POISON_S_MAX = (
    400.0  # a worker with handlers of 20 s is not quiet for its last attempt: five tries in 190 s
)
LAG_S_MAX = 30.0
FOREIGN, FOREIGN_S = 300, 20.0
UNANSWERED = 6
REDIS_CLOCK, DATABASE_CLOCK = "Redis' clock steps", "a database's clock steps"
REDIS_LINK = "a worker's link to Redis"
POPPED_S = 3.0  # what was popped by a wrong time has been started, or put back, by then
STEPS_S = (120, 600, 3600)
MISFITS = 200  # of each slot: its next ones


@dataclass(frozen=True, slots=True)
class Act:
    """What a fault is given: its own chance, and the process of each kind that is its to break."""

    world: World
    rng: random.Random
    worker: Host
    client: Host
    web: Host
    consumer: Host

    def hold(self, *, lease: bool = False) -> None:
        """As long as most faults last; or well beyond a lease."""
        scale = self.world.scale
        time.sleep(self.rng.uniform(*scale.hold_s) + (scale.lease_s if lease else 0))

    def breath(self, seconds: float = 1.0) -> None:
        time.sleep(self.rng.uniform(0, seconds))


Deed = Callable[[Act], Sequence[str]]
"""Answers the processes that may have lost a lease by it, named as in histories."""


@dataclass(frozen=True, slots=True)
class Fault:
    """`hits`: what it breaks, or needs whole. Two that hit the same are not combined.

    rest_s: how long it is left alone afterwards, in a long run: what was in flight comes back when its
    lease is over.
    """

    name: str
    hits: frozenset[str]
    rest_s: float
    do: Deed


FAULTS: list[Fault] = []
NOTHING: frozenset[str] = frozenset()  # a fault that hits it stays alone


def fault(name: str, hits: str, rest_s: float = 0.0) -> Callable[[Deed], Deed]:
    def add(deed: Deed) -> Deed:
        FAULTS.append(Fault(name, frozenset(hits.split()), rest_s, deed))
        return deed

    return add


@fault("nothing", "")
def nothing(act: Act) -> Sequence[str]:
    act.hold()
    return NOBODY


# ---- workers


@fault("worker killed", "worker", 30)
def worker_killed(act: Act) -> Sequence[str]:
    process = act.worker.process
    act.worker.kill()
    act.breath(3)
    act.worker.start()
    act.worker.wait_ready()
    return [process]


@fault("all workers killed", "worker", 100)
def workers_killed(act: Act) -> Sequence[str]:
    workers = act.world.workers
    processes = [worker.process for worker in workers]
    for worker in workers:
        worker.kill()
    act.breath()
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.wait_ready()
    return processes


@fault("worker frozen past its lease", "worker", 12)
def worker_frozen(act: Act) -> Sequence[str]:
    act.worker.freeze()
    act.hold(lease=True)
    act.worker.thaw()
    return [act.worker.process]


@fault("worker frozen within its lease", "worker")
def worker_paused(act: Act) -> Sequence[str]:
    act.worker.freeze()
    act.breath(act.world.scale.lease_s / 3)
    act.worker.thaw()
    return NOBODY


@fault("answers of take-overs lost", "worker", 20)
def take_overs_unanswered(act: Act) -> Sequence[str]:
    """One is killed; when its leases end the others hear, again and again, no answer of MySQL."""
    world = act.world
    processes = [worker.process for worker in world.workers]
    others = [worker for worker in world.workers if worker is not act.worker]
    wires = [wire for worker in others for wire in worker.links.to("mysql")]
    act.worker.kill()
    time.sleep(world.scale.lease_s - 1)
    for _ in range(UNANSWERED):
        for wire in wires:
            wire.cut(answers_only=True)
        act.breath(0.5)
        for wire in wires:
            wire.mend()
            wire.reset()
        act.breath(0.5)
    act.worker.start()
    act.worker.wait_ready()
    return processes


@fault("rolling restart", "worker")
def rolling_restart(act: Act) -> Sequence[str]:
    for worker in act.world.workers:
        restart(worker)
    return NOBODY


@fault("poison job", "worker", 40)
def poison(act: Act) -> Sequence[str]:
    world = act.world
    with world.expecting_deaths(world.workers) as died:
        # Another fault may have the database away meanwhile.
        biz_id = act.rng.randrange(10**6)
        job_id = wait_until(lambda: world.schedule_poison(biz_id), "a poison job", POISON_S_MAX)
        assert job_id is not None

        def is_dead() -> bool:
            try:
                job = world.stack.center.get(job_id)
            except StoreUnavailable:
                return False
            return job is not None and job.status is Status.DEAD

        wait_until(is_dead, "the poison job to be dead", POISON_S_MAX)
        for worker in world.workers:
            worker.wait_ready()
    return died


@fault("worker's clock wrong", "worker")
def worker_elsewhen(act: Act) -> Sequence[str]:
    return elsewhen(act, act.worker)


# ---- clients


@fault("client killed between commit and reminder", "client")
def client_dies(act: Act) -> Sequence[str]:
    with act.world.expecting_deaths([act.client]):
        before = act.client.process
        act.client.send("die")
        wait_until(lambda: act.client.process != before, "the client to die", 60)
        act.client.wait_ready()
    return NOBODY


@fault("client killed", "client")
def client_killed(act: Act) -> Sequence[str]:
    act.client.kill()
    act.breath()
    act.client.start()
    act.client.wait_ready()
    return NOBODY


@fault("client's clock wrong", "client")
def client_elsewhen(act: Act) -> Sequence[str]:
    return elsewhen(act, act.client)


def elsewhen(act: Act, host: Host) -> Sequence[str]:
    """It runs for a while on a machine whose clock is wrong."""
    restart(host, act.rng.choice((-1, 1)) * act.rng.choice((2, 60, 3600)))
    act.hold()
    restart(host)
    return NOBODY


def restart(host: Host, wrong_by_s: int = 0) -> None:
    host.stop()
    host.start(wrong_by_s)
    host.wait_ready()


# ---- remote consumers, and the replicas of `toc web`


@fault("consumer killed", "consumer", 15)
def consumer_killed(act: Act) -> Sequence[str]:
    process = act.consumer.process
    act.consumer.kill()
    act.breath(3)
    act.consumer.start()
    act.consumer.wait_ready()
    return [process]


@fault("consumer frozen past its lease", "consumer", 12)
def consumer_frozen(act: Act) -> Sequence[str]:
    """It wakes with leases that others have, and settles them."""
    act.consumer.freeze()
    act.hold(lease=True)
    act.consumer.thaw()
    return [act.consumer.process]


@fault("a consumer's links to the webs", "consumer", 12)
def consumer_without_webs(act: Act) -> Sequence[str]:
    disturb(act, some(act, act.consumer.links.to("web")))
    return [act.consumer.process]


@fault("a client's links to the webs", "client")
def client_without_webs(act: Act) -> Sequence[str]:
    disturb(act, some(act, act.client.links.to("web")))
    return NOBODY


@fault("web killed", "web", 15)
def web_killed(act: Act) -> Sequence[str]:
    """With calls that wait in it; the consumers settle their leases at the other replica."""
    act.web.kill()
    act.breath(3)
    act.web.start()
    act.web.wait_ready()
    return NOBODY


@fault("all webs killed", "web", 15)
def webs_killed(act: Act) -> Sequence[str]:
    """Leases end meanwhile, and nobody can settle or extend them."""
    for web in act.world.webs:
        web.kill()
    act.breath()
    for web in act.world.webs:
        web.start()
    for web in act.world.webs:
        web.wait_ready()
    return act.world.consumer_processes


@fault("web restarted", "web")
def web_restarted(act: Act) -> Sequence[str]:
    restart(act.web)
    return NOBODY


@fault("web frozen", "web", 12)
def web_frozen(act: Act) -> Sequence[str]:
    """Calls that it has taken are answered late; it may hold locks of rows."""
    act.web.freeze()
    act.hold(lease=True)
    act.web.thaw()
    return act.world.consumer_processes


@fault("a web's link to MySQL", "web", 12)
def web_without_mysql(act: Act) -> Sequence[str]:
    """A transaction that hangs keeps its locks, so leases may end before they can be settled."""
    disturb(act, some(act, act.web.links.to("mysql")))
    return act.world.consumer_processes


@fault("a web's link to Redis", "web")
def web_without_redis(act: Act) -> Sequence[str]:
    disturb(act, act.web.links.to("redis"))
    return NOBODY


# ---- MySQL


@fault("MySQL killed", "mysql")
def mysql_killed(act: Act) -> Sequence[str]:
    database = act.rng.choice(act.world.databases)
    database.kill()
    act.breath(2)
    database.start()
    return EVERYBODY


@fault("MySQL frozen", "mysql")
def mysql_frozen(act: Act) -> Sequence[str]:
    """All databases."""
    for database in act.world.databases:
        database.freeze()
    act.hold()
    for database in act.world.databases:
        database.thaw()
    return EVERYBODY


@fault("database 0 hangs", "mysql", 15)
def first_database_hangs(act: Act) -> Sequence[str]:
    """Past leases and all time-outs: it takes connections, and answers none. The other one goes on."""
    act.world.databases[0].freeze()
    act.hold(lease=True)
    act.world.databases[0].thaw()
    return EVERYBODY


@fault(DATABASE_CLOCK, "mysql redis")
def database_elsewhen(act: Act) -> Sequence[str]:
    """Of one of them: no other server agrees with it.

    A process that starts meanwhile needs two other servers to see that (ADR 18), so Redis stays whole.
    """
    return step_clock(act, act.rng.choice(act.world.databases))


@fault("a type's row lost", "mysql")
def type_lost(act: Act) -> Sequence[str]:
    """As after a fail-over to a replica that lacked it; then another type comes up.

    Who is killed or restarted meanwhile, or comes next, meets the types as they are now.
    """
    lost, new = act.rng.choice(sorted(TYPES)), f"chaos.new.{act.rng.getrandbits(32):08x}"
    opened = act.world.stack.center._open_connections()
    home = opened.databases[0]
    with home.engine.begin() as connection:
        connection.execute(delete(home.biz_type).where(home.biz_type.c.name == lost))
    opened.database_metadata.types.get_or_create_number(new, home)
    act.hold()
    return NOBODY


# ---- Redis


@fault("Redis wiped", "redis")
def redis_wiped(act: Act) -> Sequence[str]:
    for _ in range(act.rng.randint(1, 3)):
        with act.world.to_redis() as client:
            client.flushall()
        act.breath()
    return NOBODY


@fault("Redis rolled back", "redis")
def redis_rolled_back(act: Act) -> Sequence[str]:
    """It comes back with what it had a second or two before it was killed."""
    with act.world.to_redis() as client:
        client.save()
    time.sleep(act.rng.uniform(0.5, 2))
    act.world.redis.kill()
    act.breath()
    act.world.redis_back(empty=False)
    saved_by(act.world.redis).unlink(missing_ok=True)
    return NOBODY


@fault("Redis killed and empty", "redis")
def redis_killed(act: Act) -> Sequence[str]:
    act.world.redis.kill()
    act.hold()
    act.world.redis_back(empty=True)
    return NOBODY


@fault("Redis fails over to a replica that lags", "redis")
def redis_fails_over(act: Act) -> Sequence[str]:
    """It has heard nothing for a while when its master dies: what was armed meanwhile is gone."""
    world = act.world
    with world.to_redis(world.replica) as replica:
        replica.replicaof("NO", "ONE")
        heard = replica.info("replication")["master_repl_offset"]
    time.sleep(act.rng.uniform(0.5, 2))
    with world.to_redis() as master:
        wait_until(
            lambda: master.info("replication")["master_repl_offset"] > heard,
            "the master to have written what its replica has not heard",
            LAG_S_MAX,
        )
    world.redis.kill()
    world.promote()
    return NOBODY


@fault("two masters for a while", "redis")
def redis_split(act: Act) -> Sequence[str]:
    """The replica is promoted while the old master lives, and the machines learn of it one by one."""
    act.world.promote(lambda: act.breath(0.8))
    return NOBODY


@fault("Redis full", "redis")
def redis_full(act: Act) -> Sequence[str]:
    with act.world.to_redis() as client:
        client.config_set("maxmemory", max(1, client.info("memory")["used_memory"] // 2))
        act.hold()
        client.config_set("maxmemory", 0)
    return NOBODY


@fault("reminders in two slots", "redis")
def redis_misfits(act: Act) -> Sequence[str]:
    """Each also stands in another slot, due at the same moment: a poller pops both in one call."""
    settings = act.world.stack.settings
    slots = range(settings.slot_amount_of("default"))
    keys = [store_queue_key(settings.namespace, "default", slot) for slot in slots]
    with act.world.to_redis() as client:
        for key in keys:
            for job_id, due_ms in client.zrange(key, 0, MISFITS, withscores=True):
                client.zadd(act.rng.choice(keys), {job_id: due_ms})
    act.hold()
    return NOBODY


@fault(REDIS_CLOCK, "redis")
def redis_elsewhen(act: Act) -> Sequence[str]:
    """While it lasts, jobs may start up to a second early, and no earlier (ADR 18)."""
    return step_clock(act, act.world.redis)


@fault("Redis frozen", "redis")
def redis_frozen(act: Act) -> Sequence[str]:
    act.world.redis.freeze()
    act.hold()
    act.world.redis.thaw()
    return NOBODY


# ---- ZooKeeper


@fault("a ZooKeeper killed", "zookeeper")
def zookeeper_killed(act: Act) -> Sequence[str]:
    act.rng.choice(act.world.zookeepers.nodes).kill()
    act.hold()
    act.world.zookeepers.start()
    return NOBODY


@fault("all ZooKeepers killed", "zookeeper")
def zookeepers_killed(act: Act) -> Sequence[str]:
    """Longer than a session."""
    for node in act.world.zookeepers.nodes:
        node.kill()
    time.sleep(act.world.scale.session_s)
    act.hold()
    act.world.zookeepers.start()
    return NOBODY


@fault("ZooKeeper's leader frozen", "zookeeper")
def zookeeper_frozen(act: Act) -> Sequence[str]:
    leader = act.world.zookeepers.leader()
    leader.freeze()
    act.hold()
    leader.thaw()
    act.world.zookeepers.start()  # waits until they are one again
    return NOBODY


@fault("foreign members", "zookeeper")
def foreign(act: Act) -> Sequence[str]:
    """300 members that no process stands behind: as owners and deputies they do nothing."""
    world = act.world
    namespace = world.stack.settings.namespace
    with foreign_members(world.zookeepers.url, namespace, FOREIGN):
        act.hold()
        time.sleep(FOREIGN_S)  # until what is overdue has been claimed at least once
    return NOBODY


def step_clock(act: Act, server: Server) -> Sequence[str]:
    """Ahead or back while all run, and right again before a probe has looked or long after it."""
    steps = act.world.steps[server]
    steps.set(act.rng.choice((-1, 1)) * act.rng.choice(STEPS_S))
    act.hold()
    time.sleep(act.rng.choice((0, TICK_S + 1)))
    steps.set(0)
    time.sleep(POPPED_S)
    return NOBODY


# ---- links


@fault("a worker's link to MySQL", "worker")
def worker_without_mysql(act: Act) -> Sequence[str]:
    disturb(act, some(act, act.worker.links.to("mysql")))
    return [act.worker.process]


@fault("a worker's link to MySQL, past its lease", "worker", 15)
def worker_without_mysql_long(act: Act) -> Sequence[str]:
    disturb(act, act.worker.links.to("mysql"), lease=True)
    return [act.worker.process]


@fault(REDIS_LINK, "worker")
def worker_without_redis(act: Act) -> Sequence[str]:
    disturb(act, act.worker.links.to("redis"))
    return NOBODY


@fault("a worker's links to ZooKeeper", "worker")
def worker_without_zookeeper(act: Act) -> Sequence[str]:
    disturb(act, act.worker.links.to("zookeeper"))
    return NOBODY


@fault("a client's link to MySQL", "client")
def client_without_mysql(act: Act) -> Sequence[str]:
    disturb(act, some(act, act.client.links.to("mysql")))
    return NOBODY


@fault("a client's link to Redis", "client")
def client_without_redis(act: Act) -> Sequence[str]:
    disturb(act, act.client.links.to("redis"))
    return NOBODY


def some(act: Act, wires: Sequence[Wire]) -> Sequence[Wire]:
    """All, or one of them: the way to one database."""
    return act.rng.choice([wires, *([wire] for wire in wires)])


def disturb(act: Act, wires: Sequence[Wire], *, lease: bool = False) -> None:
    """Nothing gets through, or no answer does, or all connections are reset: once, or all the time."""
    how = act.rng.choice(("nothing", "no answer", "severed", "reset"))
    if how == "reset":
        for _ in range(act.rng.randint(2, 6)):
            for wire in wires:
                wire.reset()
            act.breath()
        return
    for wire in wires:
        if how == "severed":
            wire.sever()
        else:
            wire.cut(answers_only=how == "no answer")
    act.hold(lease=lease)
    for wire in wires:
        wire.mend()


NAMES = [each.name for each in FAULTS]
